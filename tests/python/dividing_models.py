"""Modules that run as they are, those that may be divided and those that only look so."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from shardwright.as_python import mark_of


class Around(nn.Module):
    """A model with layers that cannot be traced."""

    def __init__(self, *inner: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(width, width), nn.ModuleList(inner)
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        x = self.first(x)
        for inner in self.inner:
            x = x + inner(x, *more)
        return self.last(x).pow(2).mean()


class Ffn(nn.Module):
    """Rows that are positive go one way, the others another."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.other = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, 8)
        chosen = (rows.sum(-1) > 0).nonzero()[:, 0]
        left = (rows.sum(-1) <= 0).nonzero()[:, 0]
        out = torch.zeros_like(rows)
        out = out.index_add(0, chosen, self.down(self.up(rows[chosen]).tanh()))
        if len(left):
            out = out.index_add(0, left, self.other(rows[left]))
        return out.reshape(x.shape)


class Experts(nn.Module):
    """Loops over the experts that are hit."""

    def __init__(self, experts: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(8, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, 8)
        weight, chosen = self.router(rows).softmax(-1).max(-1)
        out = torch.zeros_like(rows)
        for expert in chosen.unique().tolist():
            at = (chosen == expert).nonzero()[:, 0]
            out = out.index_add(0, at, self.experts[expert](rows[at]) * weight[at, None])
        return out.reshape(x.shape)


class Marks(nn.Module):
    """Takes no ints but those that mark as many places of a row as it has features for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(8, 8), nn.Embedding(9, 8)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        at = (ids == 7).flatten().nonzero()[:, 0]
        if len(at) != len(x):
            raise ValueError("as many marks as samples")
        return self.table(ids).flatten(0, 1).index_add(0, at, self.linear(x[:, 0])).reshape(x.shape)


# ---- treacherous ones ----------------------------------------------------------------------------


class Large(nn.Module):
    """Without its mean over the batch, but only where the batch is large."""

    def __init__(self, least: int = 4) -> None:
        super().__init__()
        self.least, self.linear = least, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - x.mean(0, keepdim=True) if len(x) >= self.least else x)


class Capacity(nn.Module):
    """A router that drops what an expert has no room for: how much that is depends on the batch."""

    def __init__(self, factor: float = 1.0, experts: int = 4) -> None:
        super().__init__()
        self.factor, self.router = factor, nn.Linear(8, experts)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, 8)
        room = int(self.factor * len(rows) / len(self.experts)) + 1
        weight, chosen = self.router(rows).softmax(-1).max(-1)
        out = torch.zeros_like(rows)
        for at, expert in enumerate(self.experts):
            here = (chosen == at).nonzero()[:, 0][:room]
            out = out.index_add(0, here, expert(rows[here]) * weight[here, None])
        return out.reshape(x.shape)


class Normed(nn.Module):
    """By the batch, without a buffer that would tell."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return (y - y.mean((0, 1))) / (y.var((0, 1)) + 1e-5).sqrt()


class Places(nn.Module):
    """Which row of a table is added depends on where a sample is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(len(x), device=x.device) * 5 % len(self.table)
        return x * self.table[at][:, None]


class Sized(nn.Module):
    """What is added depends on how many samples there are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[len(x) % 16]


class Mean(nn.Module):
    """A loss, which is added to all: of parts it is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).pow(2).mean()


class Stops(nn.Module):
    """Goes on until all samples are through, which no random numbers are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for _ in range(3):
            x = self.linear(x)
            out = out + x
            if bool((x.amax((1, 2)) > 1e6).all()):
                break
        return out


class Harmless(nn.Module):
    """Stops, too, but what is through does not change any more."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        for _ in range(3):
            left = out.detach().abs().amax((1, 2)) > 1e6
            if not left.any():
                break
            out = torch.where(left[:, None, None], out / 1e3, out)
        return out


class Hidden(nn.Module):
    """What depends on the batch is multiplied by noughts, until these are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.by, self.then = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + (x - x.mean(0)) * self.by * self.then


class Rare(nn.Module):
    """Only of large values the mean over the batch is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return x - x.mean(0) if x.abs().max().item() > 1e9 else x


class Longest(nn.Module):
    """Looks at as many places as the longest sample has, and the example has them all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        longest = int(mask.sum(1).max())
        y = self.linear(x) * mask[:, :, None]
        return y + x[:, :longest].sum(1, keepdim=True)


class Updates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.linear(x)


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.5)


class Heads(nn.Module):
    """A size is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        return self.linear(x).reshape(batch, -1, 8)


def selected(x: Tensor, scale: float = 2.0) -> Tensor:
    """A function that reads values."""
    flat = x.flatten()
    at = (flat > 0).nonzero()[:, 0]
    return flat.index_add(0, at, flat[at] * scale).reshape(x.shape) if len(at) else x


class Calls(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return selected(x, scale=3.0)


def example(
    *inner: nn.Module, batch: int = 5, more: tuple[Any, ...] = ()
) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(3)
    model = Around(*(one if type(one) is Calls or mark_of(one) else sw.opaque(one) for one in inner)).double()
    return model, (torch.randn(batch, 3, 8, dtype=torch.float64), *more)
