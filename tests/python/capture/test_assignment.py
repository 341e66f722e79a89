"""Losses that assign rows to columns with SciPy, which need not be there."""

from __future__ import annotations

import sys
from itertools import permutations
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import assigning
import equality
from shardwright import Graph, Plan
from shardwright.capture import capture
from shardwright.start.compiling import compile_plan


def linear_sum_assignment(cost_matrix: Any, maximize: bool = False) -> Any:
    """In the place of SciPy's, for few rows. It gives lists, and not arrays."""
    cost = [list(map(float, row)) for row in cost_matrix]
    if len(cost) > len(cost[0]):
        columns, rows = linear_sum_assignment(zip(*cost, strict=True), maximize)
        pairs = sorted(zip(rows, columns, strict=True))
        return [row for row, _ in pairs], [column for _, column in pairs]
    sign = -1 if maximize else 1
    orders = permutations(range(len(cost[0])), len(cost))
    best = min(orders, key=lambda order: sign * sum(cost[at][one] for at, one in enumerate(order)))
    return list(range(len(cost))), list(best)


@pytest.fixture(autouse=True)
def scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    home, optimize = ModuleType("scipy"), ModuleType("scipy.optimize")
    vars(home)["optimize"] = optimize
    vars(optimize)["linear_sum_assignment"] = linear_sum_assignment
    monkeypatch.setitem(sys.modules, "scipy", home)
    monkeypatch.setitem(sys.modules, "scipy.optimize", optimize)
    monkeypatch.setattr(assigning, "linear_sum_assignment", linear_sum_assignment)


def call() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 5, 8, dtype=torch.float64), torch.rand(4, 3, 2, dtype=torch.float64)


@pytest.mark.parametrize("maximize", [False, True])
def test_an_assignment_is_an_operator_and_the_model_is_divided(maximize: bool) -> None:
    module, args = assigning.Detector(maximize).double(), call()
    captured = capture(module, args)
    assert captured.verified and not captured.notes
    assert captured.graph_text.count('"shardwright.losses:assignment"') == 4
    graph = Graph(captured.graph_text)
    assert all(op.rule is not None for op in graph.operators)
    bundle, _ = compile_plan(captured, Plan.named(graph, "data", 2))
    expected = equality.reference(module, args, 2)
    assert not equality.differences(equality.run(bundle, module, args, 2), expected)
    assert assigning.linear_sum_assignment is linear_sum_assignment


@pytest.mark.slow
def test_more_columns_than_rows_and_more_rows_than_columns() -> None:
    boxes, objects = call()
    for one in (boxes, boxes[:, :2]):
        assert capture(assigning.Detector().double(), (one, objects)).verified


def test_of_arrays_it_is_scipys_own() -> None:
    assert capture(assigning.Plain().double(), (call()[0],)).verified
