"""Autocast inside a model and around it: its casts are operators, dtype for dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import models
import shardwright as sw
from shardwright import CaptureError
from shardwright.capture import capture
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import compile_model, sources

torch.set_num_threads(1)

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Small(nn.Module):
    def __init__(self, run: Callable[[Small, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)
        self.norm = nn.LayerNorm(6)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def simple(self: Small, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=BF16):
        return self.down(F.gelu(self.up(x)))


def nested(self: Small, x: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", dtype=BF16):
        h = self.up(self.norm(x))
        with torch.autocast("cpu", enabled=False):
            exact = self.down(h.float())
            with torch.autocast("cpu", dtype=FP16):
                half = exact.T.softmax(-1) @ h.float()
        return self.down(h), exact, half, self.up(x)


def around_gradients(self: Small, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=BF16):
        with torch.no_grad():
            fixed = self.up(x)
            with torch.autocast("cpu", enabled=False):
                fixed = fixed.float() + self.up(x)
        return (self.down(fixed) + self.down(self.up(x))).float()


def several_regions(self: Small, x: Tensor) -> Tensor:
    for _ in range(2):
        with torch.autocast("cpu", dtype=BF16):
            x = self.norm(x + self.down(self.up(x)))
    return x


def without_cache(self: Small, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=BF16, cache_enabled=False):
        return self.down(self.up(x)) + self.down(self.up(-x))


def composite(self: Small, x: Tensor) -> tuple[Tensor, ...]:
    """Operators that autocast does not know, made of some that it does."""
    with torch.autocast("cpu", dtype=BF16):
        h = self.up(x)
        e = torch.einsum("bi,bj,bj->i", h, h.float(), h)
        return e, torch.einsum("bi,ij->bj", x, self.up.weight.T)


def to_float32(self: Small, x: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", dtype=BF16):
        h = self.up(x)
        labels = torch.arange(x.shape[0]) % 8
        return (
            F.cross_entropy(h, labels),
            F.mse_loss(h, h.roll(1)),
            torch.cat([h, self.down.weight]),
            torch.stack([h, h.float()]),
            h.prod(0),
            F.scaled_dot_product_attention(h[None], h[None].float(), h[None]),
            torch.bmm(h[None], h.T[None].float()),
        )


def in_place(self: Small, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=BF16):
        h = torch.zeros(x.shape[0], 8)
        h += self.up(x)
        h[0] = 1.0
        return h.add_(1).relu_()


def as_decorator(self: Small, x: Tensor) -> Tensor:
    @torch.autocast("cpu", dtype=BF16)
    def inner(x: Tensor) -> Tensor:
        y: Tensor = self.up(x)
        return y

    return inner(x)


def by_dtype_of_a_tensor(self: Small, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=BF16):
        h = self.up(x)
        assert torch.is_autocast_enabled("cpu")
        return h * 2 if h.dtype == BF16 else h


RUNS = [
    simple,
    nested,
    around_gradients,
    several_regions,
    without_cache,
    composite,
    to_float32,
    in_place,
    as_decorator,
    by_dtype_of_a_tensor,
]


@pytest.mark.oldest
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_the_graph_computes_what_autocast_does(run: Any) -> None:
    """Capture compares outputs, dtypes and gradients with the module; the text is that of meta tensors."""
    module, x = Small(run), torch.randn(5, 6, requires_grad=True)
    captured = capture(module, (x,), verify=True)
    assert captured.verified
    assert captured.device == "cpu"
    assert "bf16" in captured.graph_text
    meta = capture(copy.deepcopy(module).to("meta"), (x.detach().to("meta").requires_grad_(),))
    assert meta.graph_text == captured.graph_text


def lines_of(run: Any, word: str) -> list[str]:
    text = capture(Small(run), (torch.randn(5, 6),)).graph_text
    return [line for line in text.splitlines() if word in line]


def test_operators_stay_whole() -> None:
    assert len(lines_of(simple, "aten.linear.default")) == 2
    assert len(lines_of(to_float32, "aten.cross_entropy_loss.default")) == 1
    assert len(lines_of(to_float32, "aten.scaled_dot_product_attention.default")) == 1


def test_a_parameter_that_is_only_cast_is_read_in_that_dtype() -> None:
    assert all(" bf16[" in line for line in lines_of(simple, "param ") if "norm" not in line)
    assert len(lines_of(simple, "_to_copy")) == 1
    assert all(" f32[" in line for line in lines_of(nested, "param ") if "down" in line)


def test_a_parameter_is_cast_once_in_a_region() -> None:
    assert len(lines_of(around_gradients, "_to_copy.default(%p_up_weight")) == 2, "with and without gradients"
    assert len(lines_of(several_regions, "_to_copy.default(%p_up_weight")) == 2
    assert len(lines_of(without_cache, "_to_copy.default(%p_down_weight")) == 2


def on_gpu(self: Small, x: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=BF16):
        return self.up(x)  # type: ignore[no-any-return]


def test_a_region_of_another_device_has_no_effect() -> None:
    args = (torch.randn(5, 6),)
    with pytest.raises(CaptureError, match="SW0106"):
        capture(Small(on_gpu), args)  # for which device is not known
    captured = capture(Small(on_gpu), args, device="cpu", verify=True)
    assert "bf16" not in captured.graph_text and captured.device is None
    with pytest.raises(CaptureError, match="SW0106"):
        capture(Small(simple), args, device="cuda")  # a comparison may be on the CPU
    with torch.autocast("cpu", dtype=BF16), pytest.raises(CaptureError, match="SW0106"):
        capture(Small(lambda self, x: self.up(x)), args, device="cuda")


def test_an_index_copy_takes_the_wider_dtype() -> None:
    def run(self: Small, x: Tensor) -> Tensor:
        h = torch.zeros(8, 5, 8)
        with torch.autocast("cpu", dtype=BF16):
            return h.index_copy(0, torch.tensor([0]), self.up(x)[None])

    captured = capture(Small(run), (torch.randn(5, 6),), verify=True)
    assert captured.verified


# ---- whole runs ----------------------------------------------------------------------------


class Cast(nn.Module):
    """As many training loops do: the forward under autocast, the loss in its dtype."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, *args: Tensor) -> Any:
        with torch.autocast("cpu", dtype=self.dtype):
            return self.inner(*args)


def steps(module: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> list[float]:
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(float(step()))
        optimizer.step()
    return losses


def error(ours: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    gap = sum(float((ours[n].double() - x.double()).norm() ** 2) for n, x in truth.items())
    return (gap / sum(float(x.double().norm() ** 2) for x in truth.values())) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plan", "devices"),
    [
        ("gpt", "replicate", 1),
        ("gpt", "data", 2),
        ("gpt", "megatron", 2),
        ("gpt", "data:2 x megatron:2", 4),
        ("mlp", "data", 2),
        ("mlp", "megatron", 2),
        ("resnet", "data", 2),
    ],
)
def test_training_under_autocast_inside(name: str, plan: str, devices: int) -> None:
    """No further from the exact result than one device under autocast."""
    inner, args = getattr(models, name)()
    exact = copy.deepcopy(inner)
    module = Cast(inner.float(), BF16)
    args = tuple(x.float() if x.is_floating_point() else x for x in args)
    plain = copy.deepcopy(module)

    def one_device(model: nn.Module, *given: Tensor) -> Callable[[], Any]:
        def step() -> Tensor:
            out = model(*given)
            loss: Tensor = out if isinstance(out, Tensor) else out[-1]
            loss.backward()
            return loss.detach()

        return step

    wide = tuple(x.double() if x.is_floating_point() else x for x in args)
    steps(exact, torch.optim.SGD(exact.parameters(), lr=0.05), one_device(exact, *wide))
    truth = {f"inner.{n}": x for n, x in exact.state_dict().items() if x.is_floating_point()}
    losses = steps(plain, torch.optim.SGD(plain.parameters(), lr=0.05), one_device(plain, *args))
    theirs = error(dict(plain.state_dict()), truth)
    _, compiled = compile_model(module, args, plan=plan, devices=devices)
    if plan == "data":
        kinds = [kind for kind in compiled.counts[0] if kind.startswith("backward")]
        assert set(kinds) <= {"backward reduce_gradients", "backward all_reduce"}

    def rank(_: int, comm: Any) -> tuple[list[float], dict[str, Tensor]]:
        model = sw.parallelize(module, args, plan=plan, comm=comm)
        sgd = sw.optimizer(model, torch.optim.SGD, lr=0.05)
        losses_here = steps(model, sgd, lambda: model.train_step(args))
        return losses_here, model.full_state_dict()

    for actual, state in run_local(devices, rank):
        assert {x.dtype for n, x in state.items() if n in truth} == {FP32}
        assert error(state, truth) < 1.5 * theirs + 1e-3
        assert actual == pytest.approx(losses, rel=2e-2)


def test_another_autocast_around_a_call_is_another_program() -> None:
    module, args = Small(lambda self, x: self.down(self.up(x)).sum()), (torch.randn(4, 6),)
    with torch.autocast("cpu", dtype=BF16):
        bundle, _ = compile_model(module, args, plan="data", devices=2)
        expected = module(*args)
    assert "bf16" in bundle.graph_text
    plain = module(*args)
    program = load_program(bundle.files, world=2)

    def calls(model: ParallelModule) -> list[Tensor]:
        outputs = []
        for around in (torch.autocast("cpu", dtype=BF16), nullcontext()):
            with around:
                outputs.append(model(*args))
                outputs[-1].backward()
        return outputs

    def compiling(_: int, comm: Any) -> list[Tensor]:
        with torch.autocast("cpu", dtype=BF16):
            model = sw.parallelize(module, args, comm=comm)
        return calls(model)

    def alone(_: int, comm: Any) -> list[Tensor]:
        values = sources(module, bundle.captured)
        return calls(ParallelModule(program, comm, values, bundle.captured))

    for under, outside in run_local(2, compiling):
        assert under.dtype == BF16
        assert float(under) == pytest.approx(float(expected), rel=2e-2, abs=1e-2)
        assert outside.dtype == FP32
        assert float(outside) == pytest.approx(float(plain), rel=1e-5)
    with pytest.raises(CaptureError, match=r"SW0131.*another autocast"):
        run_local(2, alone)


def test_a_program_without_autocast_is_not_touched_by_one() -> None:
    """Neither its forward nor its backward, which autocast would cast."""
    module, args = Small(simple), (torch.randn(4, 6),)
    captured = capture(module, args)
    with torch.autocast("cpu", dtype=FP16):
        other = capture(module, args)
    assert captured.graph_text == other.graph_text
    assert captured.autocast != other.autocast
