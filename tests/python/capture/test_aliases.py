"""Operators by another name are the ones that rules know. Capture compares them with the module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture

CALLS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "concatenate": ("cat.default", lambda x: torch.concatenate([x, 2 * x], -1)),
    "concat": ("cat.default", lambda x: torch.concat([x, 2 * x], dim=1)),
    "multiply": ("mul.Tensor", lambda x: torch.multiply(x, x + 1)),
    "multiply by a number": ("mul.Tensor", lambda x: torch.multiply(x, 3)),
    "true_divide": ("div.Tensor", lambda x: torch.true_divide(x, x + 5)),
    "divide": ("div.Tensor_mode", lambda x: torch.divide(x, x + 5, rounding_mode="floor") + x),
    "subtract": ("sub.Tensor", lambda x: torch.subtract(x, x + 1, alpha=2)),
    "negative": ("neg.default", lambda x: torch.negative(x)),
    "absolute": ("abs.default", lambda x: torch.absolute(x)),
    "greater": ("gt.Scalar", lambda x: torch.greater(x, 0.1) * x),
    "not_equal": ("ne.Tensor", lambda x: torch.not_equal(x, x.round()) * x),
    "clip": ("clamp.default", lambda x: torch.clip(x, -0.5, 0.5)),
    "fix": ("trunc.default", lambda x: torch.fix(x) + x),
    "arctan2": ("atan2.default", lambda x: torch.arctan2(x, x + 5)),
    "arcsinh": ("asinh.default", lambda x: torch.arcsinh(x)),
    "linalg.matmul": ("matmul.default", lambda x: torch.linalg.matmul(x, x.mT)),
    "special.expit": ("sigmoid.default", lambda x: torch.special.expit(x)),
    "special.erfc": ("erfc.default", lambda x: torch.special.erfc(x)),
    "special.logsumexp": ("logsumexp.default", lambda x: torch.special.logsumexp(x, -1)),
    "linalg.norm": ("linalg_vector_norm.default", lambda x: torch.linalg.norm(x, dim=-1, keepdim=True)),
    "linalg.norm of order 3": ("linalg_vector_norm.default", lambda x: torch.linalg.norm(x, 3, -1)),
}


class Called(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]):
        super().__init__()
        self.call, self.linear = call, nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.linear(x)).mean()


def graph_of(call: Callable[[Tensor], Tensor]) -> Graph:
    torch.manual_seed(0)
    captured = capture(Called(call), (torch.randn(2, 3, 4, dtype=torch.float64),))
    assert captured.verified
    return Graph(captured.graph_text)


@pytest.mark.parametrize("name", CALLS)
def test_it_has_the_name_that_rules_know_and_is_split(name: str) -> None:
    target, call = CALLS[name]
    graph = graph_of(call)
    assert f"aten.{target}" in [operator.target for operator in graph.operators]
    assert compile(Plan.named(graph, "data", 2)).unknown == []


@pytest.mark.parametrize("call", [torch.linalg.norm, lambda x: torch.linalg.norm(x, dim=(-2, -1))])
def test_a_norm_of_several_dims_stays_what_it_is(call: Callable[[Tensor], Tensor]) -> None:
    targets = [operator.target for operator in graph_of(call).operators]
    assert "aten.linalg_norm.default" in targets
