"""Models that cannot be captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
from refusing import refused
from shardwright.start.compiling import compile_model


class Branch(nn.Module):
    """Goes by what it computes with a parameter; what it reads of inputs alone would be noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale * x
        if x.sum() > 0:
            x = -x
        return x.sum()


class Custom(nn.Module):
    """Applies a Function that other ranks cannot find."""

    def forward(self, x: Tensor) -> Tensor:
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return 2 * x

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return 2 * grad

        return Twice.apply(x).sum()


@pytest.mark.parametrize("kind", [Branch, Custom])
def test_a_model_that_cannot_be_captured(kind: type[nn.Module]) -> None:
    refused(f"model {kind.__name__}", lambda: compile_model(kind(), (torch.randn(4, 4),)))


def test_no_model_at_all() -> None:
    refused("model None", lambda: compile_model(None, (torch.randn(4, 4),)))  # type: ignore[arg-type]
    refused("model without tensors", lambda: compile_model(models.mlp()[0], (1, 2)))
    refused("model without arguments", lambda: compile_model(models.mlp()[0], ()))
