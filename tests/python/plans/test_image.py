"""Rows of images over devices: equal to one device, and only the rows beside each part move."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import channels
import equality
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture
from shardwright.report.computed_work import work_of

torch.set_num_threads(1)

PLANS = [
    ("image", 2),
    ("image", 4),
    ("data:2 x image:2", 4),
    ("zero3:2 x image:2", 4),
    ("megatron:2 x image:2", 4),
    ("image:2 x megatron:2", 4),
]
HEIGHT, WIDTH, BATCH = 32, 24, 2


class Net(nn.Module):
    """Windows of all kinds, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 2, 2)
        self.first = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.far = nn.Conv2d(8, 8, 3, 1, 2, dilation=2, groups=2)
        self.down = nn.Conv2d(8, 4, 3, 2, 1)
        self.up = nn.ConvTranspose2d(4, 4, 2, 2)
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.far(self.pool(self.first(self.patches(x)))).tanh()
        x = nn.functional.interpolate(self.up(self.down(x)), scale_factor=2)
        return self.last(x).square().mean()


def net() -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    module = Net().double().train()
    return module, (torch.randn(BATCH, 3, HEIGHT, WIDTH, dtype=torch.float64),)


class Normed(nn.Module):
    """As in nets of diffusion and of style."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 6, 1, bias=False)
        )
        self.last = nn.Sequential(nn.InstanceNorm2d(6, affine=True), nn.SiLU(), nn.Conv2d(6, 2, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(x)).square().mean()


def normed() -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    return Normed().double(), (torch.randn(BATCH, 3, HEIGHT, WIDTH, dtype=torch.float64),)


MODELS = {
    "net": net,
    "normed": normed,
    **{name: channels.MODELS[name] for name in ("unet", "mobilenet", "convnext")},
}


@functools.cache
def model(name: str) -> tuple[Any, tuple[Any, ...], Captured, Graph, equality.Result]:
    module, args = MODELS[name]()
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text), equality.reference(module, args)


def made(name: str, plan: str, devices: int) -> Compiled:
    return compile(Plan.named(model(name)[3], plan, devices))


def check(name: str, plan: str, devices: int) -> None:
    module, args, captured, _, expected = model(name)
    compiled = made(name, plan, devices)
    bundle = Bundle(dict(compiled.files), compiled.digest, plan, devices, captured, "", "")
    equality.assert_equal(equality.run(bundle, module, args), expected, f"{name}, {plan}")


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_it_is_equal_to_the_single_device(plan: str, devices: int) -> None:
    check("net", plan, devices)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet", "mobilenet", "convnext"])
def test_other_nets_are_equal(name: str) -> None:
    check(name, "image", 2)


@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_norms_of_groups_are_equal(plan: str, devices: int) -> None:
    check("normed", plan, devices)


def test_norms_of_groups_send_statistics() -> None:
    """Of each, its mean and its variance."""
    compiled = made("normed", "image", 2)
    assert compiled.counts[0]["forward all_reduce"] == 5
    statistics = BATCH * (2 + 6) * 2 + 1
    assert compiled.bytes[0]["forward all_reduce"] == statistics * 8
    work = work_of(Plan.named(model("normed")[3], "image", 2))
    assert work["rank"] / work["model"] == pytest.approx(0.5, rel=0.01)


def test_a_device_has_its_share_of_the_work() -> None:
    work = work_of(Plan.named(model("net")[3], "image", 2))
    assert work["rank"] / work["model"] == pytest.approx(0.5, rel=1e-6)


def test_only_rows_beside_blocks_move() -> None:
    """A side of blocks that is read is gathered, and so are its gradients."""
    compiled = made("net", "image", 2)
    sides = {"first": 2, "pool": 1, "far": 2, "down": 1}
    counts = compiled.counts[0]
    assert counts["forward all_gather"] == sum(sides.values())
    assert counts["backward all_gather"] == sum(sides.values())
    assert not [kind for kind in counts if "scatter" in kind or "exchange" in kind or "send" in kind], counts
    # Batch, channels, blocks, rows of each side, width.
    elements = 2 * 8 * (8 * 2 * 12 + 8 * 1 * 12 + 2 * 4 * 6 + 4 * 1 * 6)
    assert compiled.bytes[0]["forward all_gather"] == elements * 8 // 2
