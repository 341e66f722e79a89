"""Models with experts: captured in the form that has a graph, held without a matrix for each token."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import equality
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.library import expert_linear

torch.set_num_threads(1)

MIXTURE = "shardwright.experts.default"
PRODUCT = "shardwright.expert_linear.default"


@functools.cache
def captured_mixtral() -> tuple[zoo.Model, Captured]:
    model = zoo.mixtral()
    with zoo.widened():
        return model, capture(*model)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["eager", "grouped_mm", "batched_mm"])
def test_any_way_of_computing_experts_is_captured_alike(way: str) -> None:
    module, args, kwargs = zoo.mixtral(way)
    config: Any = module.config
    # `grouped_mm` has no float64.
    with zoo.widened() if way != "grouped_mm" else nullcontext():
        captured = capture(module.float() if way == "grouped_mm" else module, args, kwargs)
    assert config._experts_implementation == way
    said = f"experts are captured as `batched_mm`, which computes the same as `{way}`"
    assert captured.notes == ([] if way == "batched_mm" else [said])
    assert captured.verified
    targets = [op.target for op in Graph(captured.graph_text).operators]
    assert targets.count(MIXTURE) == 2
    assert "aten.bmm.default" not in targets and PRODUCT not in targets


@pytest.mark.slow
def test_megatron_splits_the_inside_of_each_expert() -> None:
    _, captured = captured_mixtral()
    graph = Graph(captured.graph_text)
    plan = Plan.named(graph, "megatron", 2)
    splits = [splits for op, splits, _ in plan.decisions if op.target == MIXTURE]
    assert splits == [[("n", 2)]] * 2
    inside = [(when, kind) for when, kind, path, _ in compile(plan).communications if "layers" in path]
    # Backward also sums the gradients of the experts' weights, a number for each token and expert, in the
    # message of what the experts read.
    assert inside.count(("forward", "all_reduce")) == 4
    assert inside.count(("backward", "all_reduce")) == 4
    assert len(inside) == 8


def test_experts_may_be_spread_over_devices() -> None:
    """Each device has some of the experts: what it adds for the tokens of others is zero."""
    (module, args, kwargs), captured = captured_mixtral()
    with zoo.widened():
        expected = equality.reference(module, args, kwargs=kwargs)
    text = 'shardwright-plan 1\nname "spread"\ndevices 3\nuse "replicate"\nop "*" shardwright.*: split e 3\n'
    compiled = compile(Plan.parse(Graph(captured.graph_text), text))
    bundle = Bundle(dict(compiled.files), compiled.digest, "spread", 3, captured, "", "")
    equality.assert_equal(equality.run(bundle, module, args, kwargs=kwargs), expected)
    whole = compile(Plan.named(Graph(captured.graph_text), "replicate", 3))
    assert max(compiled.held) < 0.8 * min(whole.held)


class Biased(torch.nn.Module):
    """Experts with a bias stay products with looked-up matrices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Parameter(torch.randn(4, 5, 6))
        self.bias = torch.nn.Parameter(torch.randn(4, 5))
        self.down = torch.nn.Parameter(torch.randn(4, 6, 5))

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        inside = torch.bmm(self.up[chosen], x.unsqueeze(-1)).squeeze(-1) + self.bias[chosen]
        return torch.bmm(self.down[chosen], inside.relu().unsqueeze(-1)).squeeze(-1).cos().mean()


def test_the_plan_expert_divides_single_products_too() -> None:
    module, args = Biased().double(), (torch.randn(8, 6, dtype=torch.float64), torch.randint(4, (8,)))
    captured = capture(module, args)
    plan = Plan.named(Graph(captured.graph_text), "expert", 2)
    assert [splits for op, splits, _ in plan.decisions if op.target == PRODUCT] == [[("e", 2)]] * 2
    compiled = compile(plan)
    bundle = Bundle(dict(compiled.files), compiled.digest, "expert", 2, captured, "", "")
    equality.assert_equal(equality.run(bundle, module, args), equality.reference(module, args))


def plainly(x: Tensor, weight: Tensor, experts: Tensor) -> Tensor:
    return torch.stack([weight[int(e)] @ row for row, e in zip(x, experts, strict=True)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_of_other_experts_are_zero(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    experts = torch.tensor([3, 0, 3, 1, 0, 3], dtype=dtype)
    expected = plainly(x, weight, experts)
    torch.testing.assert_close(expert_linear(x, weight, experts, 0, 4, False), expected)
    transposed = weight.transpose(1, 2)
    torch.testing.assert_close(expert_linear(x, transposed, experts, 0, 4, True), expected)
    parts = [expert_linear(x, weight[lo:hi], experts, lo, 4, False) for lo, hi in ((0, 1), (1, 1), (1, 4))]
    torch.testing.assert_close(torch.stack(parts).sum(0), expected)
    assert not parts[1].any()
    assert parts[0].ne(0).any(1).tolist() == [False, True, False, False, True, False]
    for actual, wanted in zip(
        torch.autograd.grad(torch.stack(parts).sum(0).cos().sum(), (x, weight)),
        torch.autograd.grad(expected.cos().sum(), (x, weight)),
        strict=True,
    ):
        torch.testing.assert_close(actual, wanted)


def test_no_experts_and_no_rows_are_fine() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    weight = torch.randn(2, 4, 5, requires_grad=True)
    none = expert_linear(x, weight[:0], torch.zeros(3, dtype=torch.int64), 0, 2, False)
    assert none.shape == (3, 4)
    assert all(not g.any() for g in torch.autograd.grad(none.sum(), (x, weight)))
    empty = expert_linear(x[:0], weight, torch.zeros(0, dtype=torch.int64), 0, 2, False)
    assert empty.shape == (0, 4)
    assert all(not g.any() for g in torch.autograd.grad(empty.sum(), (x, weight)))
