"""Branches on the values of tensors that a tensor can choose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import branching
import equality
import shardwright as sw
from shardwright import Graph, Plan
from shardwright.capture import Captured, capture
from shardwright.start.compiling import compile_plan


def given(size: float = 1.0) -> Tensor:
    torch.manual_seed(0)
    return size * torch.randn(4, 8, dtype=torch.float64)


def small(module: nn.Module, **how: Any) -> Captured:
    return capture(module.double(), (given(),), known_inputs=(), **how)


@pytest.mark.parametrize("kind", branching.CHOOSING)
def test_a_tensor_chooses(kind: type[nn.Module]) -> None:
    captured = small(kind())
    assert captured.verified and not captured.notes
    assert "aten.where.self" in captured.graph_text
    assert all(op.rule is not None for op in Graph(captured.graph_text).operators)


@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize("kind", branching.CHOOSING)
def test_the_program_goes_both_ways(kind: type[nn.Module], size: float) -> None:
    """Captured where the model does not go into its branch, or does; and run where it does."""
    module = kind().double()
    captured = capture(module, (given(),), known_inputs=())
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "data", 2))
    args = (given(size),)
    expected = equality.reference(module, args, 2)
    assert not equality.differences(equality.run(bundle, module, args, 2), expected)


@pytest.mark.parametrize("kind", branching.DECIDING)
def test_what_a_tensor_cannot_choose_is_a_decision(kind: type[nn.Module]) -> None:
    with pytest.raises(sw.CaptureError, match="SW0102"):
        small(kind())
