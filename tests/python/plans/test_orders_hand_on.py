"""Orders that are searched for run no block before one that keeps something for it on the same rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shardwright.cli import main


class Quantiser(nn.Module):
    """The nearest of some vectors, which follow by moving averages; gradients go past it."""

    embedding: Tensor
    sizes: Tensor
    sums: Tensor

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        vectors = torch.randn(count, width)
        self.register_buffer("embedding", vectors)
        self.register_buffer("sizes", torch.ones(count))
        self.register_buffer("sums", vectors.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        distances = x.pow(2).sum(1, keepdim=True) - 2 * x @ self.embedding.t()
        nearest = (distances + self.embedding.pow(2).sum(1)).argmin(1)
        chosen = functional.one_hot(nearest, len(self.embedding)).to(x.dtype)
        found = chosen @ self.embedding
        with torch.no_grad():
            self.sizes.mul_(0.99).add_(chosen.sum(0), alpha=0.01)
            self.sums.mul_(0.99).add_(chosen.t() @ x.detach(), alpha=0.01)
            self.embedding.copy_(self.sums / (self.sizes + 1e-5).unsqueeze(1))
        return x + (found - x).detach(), functional.mse_loss(x, found.detach())


class Model(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width))
        self.quantiser = Quantiser(64, width)
        self.decoder = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16))

    def forward(self, x: Tensor) -> Tensor:
        found, far = self.quantiser(self.encoder(x))
        return functional.mse_loss(self.decoder(found), x) + 0.25 * far


def small() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Model(), (torch.randn(32, 16),)


def large() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Model(512), (torch.randn(256, 16),)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "large"])
def test_a_plan_is_found_for_a_vector_quantiser(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Several of its blocks read what the encoder makes, and their gradients go back together."""
    file = f"{Path(__file__)}:{name}"
    assert main(["plan", file, "--cluster", "dgx-v100:4x1", "--batches", "2"]) == 0
    assert "\nstep     " in capsys.readouterr().out
