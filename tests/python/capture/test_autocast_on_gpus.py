"""The autocast of a GPU, where there is none: what it casts is asked of PyTorch, on tensors without data."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
import models
import shardwright as sw
from shardwright import CaptureError
from shardwright.capture import capture, still_computes
from shardwright.capture.casts import Casting
from shardwright.capture.verify import against_module, comparison
from shardwright.start.compiling import compile_model
from shardwright.start.starter import Starter

torch.set_num_threads(1)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    """PyTorch says that it switches autocast off."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "User provided device_type of 'cuda'")
        yield


@contextmanager
def around(dtype: torch.dtype = BF16) -> Iterator[None]:
    """As `torch.autocast("cuda")` in the user's loop, which PyTorch would switch off here."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


class Small(nn.Module):
    def __init__(self, run: Callable[[Small, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = nn.Linear(6, 8), nn.Linear(8, 6), nn.LayerNorm(6)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """As autocast computes one."""
    return F.linear(x.to(BF16), layer.weight.to(BF16), layer.bias.to(BF16))


def sums(x: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    return x.sum(-1, dtype=dtype), x.sum(dtype=dtype), x.cumsum(0, dtype=dtype), x.prod(0, dtype=dtype)


def powers(x: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    """A cast for each: its gradients are added up in the other type."""
    casts = [x if dtype is None else x.to(dtype) for _ in range(3)]
    return casts[0].pow(2), casts[1].exp(), casts[2].cosh()


def attention(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    x = x[None].float()
    return F.scaled_dot_product_attention(*[x if dtype is None else x.to(dtype) for _ in range(3)])


def doubled(x: Tensor) -> Tensor:
    return x * 2 if x.dtype == BF16 else x


Run = Callable[[Small, Tensor], Any]
# What is computed under it, and with casts that are written out.
PAIRS: dict[str, tuple[Run, Run]] = {
    "products": (
        lambda m, x: m.down(F.gelu(m.up(x))),
        lambda m, x: linear(m.down, F.gelu(linear(m.up, x))),
    ),
    "softmax": (
        lambda m, x: m.up(x).softmax(-1),
        lambda m, x: linear(m.up, x).to(FP32).softmax(-1),
    ),
    "sums": (
        lambda m, x: sums(m.up(x), None),
        lambda m, x: sums(linear(m.up, x), FP32),
    ),
    "a norm": (
        lambda m, x: m.norm(m.down(m.up(x))),
        lambda m, x: m.norm(linear(m.down, linear(m.up, x)).to(FP32)),
    ),
    "powers": (
        lambda m, x: powers(m.up(x), None),
        lambda m, x: powers(linear(m.up, x), FP32),
    ),
    "a loss": (
        lambda m, x: F.mse_loss(m.down(m.up(x)), x),
        lambda m, x: F.mse_loss(linear(m.down, linear(m.up, x)).to(FP32), x),
    ),
    "the wider one": (
        lambda m, x: torch.cat([m.down(m.up(x)), x]),
        lambda m, x: torch.cat([linear(m.down, linear(m.up, x)).to(FP32), x]),
    ),
    "attention": (
        lambda m, x: attention(m.up(x), None),
        lambda m, x: attention(linear(m.up, x), BF16),
    ),
    "what the model reads of dtypes": (
        lambda m, x: doubled(m.up(x)),
        lambda m, x: linear(m.up, x) * 2,
    ),
}


def operators_of(text: str) -> list[str]:
    """By what they are, without names and places; but for casts, which may be made twice by hand."""
    operators = [line.split(' in "')[0] for line in text.splitlines() if line.startswith("op ")]
    return sorted(re.sub(r"%\w+", "%", line) for line in operators if "_to_copy" not in line)


@pytest.mark.parametrize("way", ["inside", "around"])
@pytest.mark.parametrize("name", PAIRS)
def test_casts_are_those_of_a_gpu(name: str, way: str) -> None:
    """The graph has the operators of the same model with casts by hand, and computes what that does."""
    under, by_hand = PAIRS[name]
    x = torch.randn(5, 6)

    def run(m: Small, x: Tensor) -> Any:
        with torch.autocast("cuda", dtype=BF16):
            return under(m, x)

    if way == "around":
        with around():
            captured = capture(Small(under), (x,), device="cuda")
    else:
        captured = capture(Small(run), (x,), device="cuda")
    module = Small(by_hand)
    expected = capture(module, (x,), verify=True)
    assert captured.device == "cuda" and expected.device is None
    # Casts have the places of what they are for.
    assert all(
        "test_autocast_on_gpus.py:" in line for line in captured.graph_text.splitlines() if line[:3] == "op "
    )
    assert operators_of(captured.graph_text) == operators_of(expected.graph_text)
    call = against_module.Call(module, captured.in_spec.bind((x,), {}), Casting(module))
    against_module.verify_capture(call, captured.graph_text, captured.constants, captured.out_spec)
    changed = captured.graph_text.replace("bf16", "f32")
    with pytest.raises(CaptureError, match="SW0114"):
        against_module.verify_capture(call, changed, captured.constants, captured.out_spec)


def test_it_is_no_more_than_said_that_it_was_not_compared() -> None:
    """A CPU does not compute what a GPU would."""
    with around():
        module = Small(PAIRS["products"][0])
        captured = capture(module, (torch.randn(5, 6),), device="cuda")
        assert captured.notes == [f"graph and module were not compared: {comparison.NO_GPU}"]
        with pytest.raises(CaptureError, match="SW0113"):
            capture(module, (torch.randn(5, 6),), device="cuda", verify=True)
        # Nor can it be at a start from the cache, where that is no reason to compile anew.
        assert still_computes(module, (torch.randn(5, 6),), None, captured, captured.graph_text)


def test_a_region_of_one_dtype_in_one_of_another() -> None:
    def run(m: Small, x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cuda", dtype=BF16):
            h = m.up(x)
            with torch.autocast("cuda", enabled=False):
                exact = m.down(h.float())
                with torch.autocast("cuda", dtype=FP16):
                    half = m.up(exact)
        return exact, half, m.up(x)

    text = capture(Small(run), (torch.randn(5, 6),), device="cuda").graph_text
    results = [line.split(" ")[2] for line in text.splitlines() if "aten.linear" in line]
    assert results == ["bf16[5,8]", "f32[5,6]", "f16[5,8]", "f32[5,8]"]


def test_a_parameter_is_cast_once_in_a_region() -> None:
    def twice(m: Small, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=BF16):
            first = m.down(m.up(x))
        with torch.autocast("cuda", dtype=BF16), torch.no_grad():
            fixed = m.down(m.up(x)) + m.down(m.up(x))
        return first + fixed

    text = capture(Small(twice), (torch.randn(5, 6),), device="cuda").graph_text
    assert len(re.findall(r"_to_copy.default\(%p_up_weight", text)) == 2


def test_where_no_device_is_known_it_is_refused() -> None:
    with around(), pytest.raises(CaptureError, match="SW0106"):
        capture(Small(PAIRS["products"][0]), (torch.randn(5, 6),))
    with around(), pytest.raises(CaptureError, match="SW0106"):
        capture(Small(PAIRS["products"][0]), (torch.randn(5, 6),), device="xpu")


@pytest.mark.parametrize("plan", ["data", "megatron", "zero3"])
def test_a_program_computes_with_these_casts(plan: str) -> None:
    """Its ranks are on CPUs: what a program has of autocast are casts, which are the same everywhere."""
    module, args = models.gpt()
    module = module.float()

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *args: Tensor) -> Any:
            with torch.autocast("cuda", dtype=BF16):
                return self.inner(*args)

    bundle, _ = compile_model(Cast(), args, plan=plan, devices=2, device="cuda")
    assert "bf16" in bundle.graph_text and bundle.captured.device == "cuda"
    bundle.captured.device = None
    exact = equality.reference(copy.deepcopy(Cast()), args)
    actual = equality.run(bundle, Cast(), args)
    for name, loss in exact.losses.items():
        assert float(actual.losses[name]) == pytest.approx(float(loss), rel=2e-2)
    gap = sum(float((actual.gradients[n] - g).norm() ** 2) for n, g in exact.gradients.items())
    size = sum(float(g.norm() ** 2) for g in exact.gradients.values())
    assert 1e-4 < (gap / size) ** 0.5 < 5e-2


def test_a_loop_under_it_is_captured_and_called_under_it() -> None:
    """As a Lightning or Hugging Face loop does. A rank of this world only says that it is on a GPU."""
    module, args = Small(lambda m, x: m.down(m.up(x)).float().square().mean()), (torch.randn(4, 6),)
    with around():
        with pytest.warns(UserWarning, match="not compared"):
            bundle = Starter("data", 2, 1, {"outputs": "loss"}, {"device": "cuda"}).first(module, args, None)
        assert bundle.captured.autocast == (("cuda", BF16),)
        bundle.captured.flatten(args)
    with pytest.raises(CaptureError, match="SW0131"):
        bundle.captured.flatten(args)
    with pytest.raises(sw.RuntimeFault, match=r"for devices of type 'cuda'"):
        equality.run(bundle, module, args)
