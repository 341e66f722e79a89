"""Causal attention in blocks of the sequence, which hand their keys and values on, round and round.

On one device this is a slow way to write attention: a block of queries sees one block of keys after
another, and keeps the largest score, the sum and the result so far. `ring.plan` puts each block on a device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import shardwright as sw


@sw.register_op("... -> ...")
def handed_on(x: Tensor) -> Tensor:
    """An operator of its own, which is on a device. Who needs the keys next asks there for them."""
    return x.clone()


State = tuple[Tensor, Tensor, Tensor]


class Block(nn.Module):
    """The part of one block of queries."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, ahead: bool, own: bool, state: State | None
    ) -> tuple[State, Tensor, Tensor]:
        """What is known after these keys, and the keys for whoever is next."""
        if not ahead:
            state = self._seen(q, k, v, own, state)
        assert state is not None
        return state, handed_on(k), handed_on(v)

    def _seen(self, q: Tensor, k: Tensor, v: Tensor, own: bool, state: State | None) -> State:
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
        if own:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        most = scores.amax(-1, keepdim=True)
        if state is None:
            weights = torch.exp(scores - most)
            return most, weights.sum(-1, keepdim=True), weights @ v
        before, total, result = state
        most = torch.maximum(before, most)
        weights, fades = torch.exp(scores - most), torch.exp(before - most)
        return most, total * fades + weights.sum(-1, keepdim=True), result * fades + weights @ v


class Heads(nn.Linear):
    """A projection, head by head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, width, bias=False)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Added(nn.Linear):
    def forward(self, x: Tensor, state: State) -> Tensor:
        _, total, result = state
        return x + super().forward((result / total).transpose(1, 2).flatten(2))


class RingAttention(nn.Module):
    def __init__(self, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (Heads(width, heads) for _ in range(3))
        self.out = Added(width, width)
        self.block = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        q, k, v = ([project(part) for part in x] for project in (self.q, self.k, self.v))
        states: list[State] = [None] * len(x)  # type: ignore[list-item]
        for hop in range(len(x)):
            found = [
                block(q[at], k[at], v[at], at < hop, hop == 0, states[at])
                for at, block in enumerate(self.block)
            ]
            states = [state for state, _, _ in found]
            # The next keys are those that its neighbour has just read.
            k = [found[at - 1][1] for at in range(len(x))]
            v = [found[at - 1][2] for at in range(len(x))]
        return [self.out(part, state) for part, state in zip(x, states, strict=True)]


class SquaredError(nn.Module):
    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        return (x - wanted).square().sum()


class Model(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.layers = nn.ModuleList(RingAttention(width, heads, blocks) for _ in range(layers))
        self.error = SquaredError()

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        parts = list(x.chunk(self.blocks, 1))
        for layer in self.layers:
            parts = layer(parts)
        errors = map(self.error, parts, wanted.chunk(self.blocks, 1))
        return torch.stack(list(errors)).sum() / wanted.numel()


def tiny() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Model(32, 4, 2, 4), (torch.randn(2, 32, 32), torch.randn(2, 32, 32))


def full() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """8 layers of 4096 on one sequence of 16,384 tokens, without memory."""
    with torch.device("meta"):
        x = torch.zeros(1, 16384, 4096, dtype=torch.bfloat16)
        return Model(4096, 32, 8, 4).bfloat16(), (x, x)
