"""Models that look at values, in a module whose `assert` nobody rewrites."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Checking(nn.Module):
    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        assert x.isfinite().all(), "numbers"
        assert x.isnan().sum() == 0 and x.max() < 1e9, "large numbers"
        if not (labels >= 0).all() or labels.max() >= 8:
            raise ValueError("labels")
        if labels.min().item() < 0:
            raise ValueError("labels again")
        if x.max() > 1e9:
            print("large")
        return F.cross_entropy(x, labels)


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 0:
            print("positive")
            x = x + 1
        return x


class Stop(Exception):
    """No error: how a forward ends."""


class Ending(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            if x.max() > 1e9:
                raise Stop
            x = x + 1
        except Stop:
            pass
        return x


def selected(x: Tensor, labels: Tensor, *, least: int = 0, scales: tuple[float, ...] = (1.0,)) -> Tensor:
    """A loss over the rows that have a label, however many they are."""
    rows = labels > least
    return F.cross_entropy(x[rows] * scales[0], labels[rows])


def noisy(x: Tensor) -> Tensor:
    return x * (torch.rand(()) if x.sum() > 0 else 1)


class Selecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return selected(x, labels, scales=(2.0,)) + 0.1 * selected(x, labels, least=1)


class Noisy(nn.Module):
    """Its function draws, and so it runs as it is with the module."""

    def forward(self, x: Tensor) -> Tensor:
        return noisy(x)
