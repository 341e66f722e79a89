"""The trunk of AlphaFold 2, plain PyTorch for one device.

Blocks turn an alignment of sequences and a map of pairs of residues into better ones. The trunk is run three
times, each time on what the time before gave; only the last one learns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LETTERS, BINS = 23, 16
PASSES = 3


@dataclass
class Config:
    residues: int = 16
    """How long each sequence is."""
    sequences: int = 8
    blocks: int = 4
    heads: int = 4
    msa: int = 32
    """Channels of the alignment."""
    pair: int = 16
    """Channels of the map of pairs."""
    outer: int = 4
    """Channels of outer products, before they are multiplied."""
    wider: int = 4
    """How many times wider transitions are."""
    far: int = 8
    """Residues that are farther from each other than that look alike."""


class Attention(nn.Module):
    """Over the dim before the last one, gated, with a bias of scores if there are channels to make it of."""

    def __init__(self, width: int, heads: int, bias: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)
        if bias is not None:
            # A shift of all scores would change nothing.
            self.bias_norm = nn.LayerNorm(bias, bias=False)
            self.bias = nn.Linear(bias, heads, bias=False)

    def forward(self, x: Tensor, pair: Tensor | None = None) -> Tensor:
        x = self.norm(x)
        q, k, v = (self._heads(project(x)) for project in (self.q, self.k, self.v))
        bias = None if pair is None else self.bias(self.bias_norm(pair)).permute(0, 3, 1, 2).unsqueeze(1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = y.transpose(2, 3).reshape(x.shape)
        return self.out(torch.sigmoid(self.gate(x)) * y)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(2, 3)


class Transition(nn.Module):
    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, wider * width), nn.Linear(wider * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(self.norm(x))))


class OuterProductMean(nn.Module):
    """What two residues have to do with each other, over all sequences."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.msa)
        self.left, self.right = nn.Linear(config.msa, config.outer), nn.Linear(config.msa, config.outer)
        self.out = nn.Linear(config.outer**2, config.pair)

    def forward(self, msa: Tensor) -> Tensor:
        msa = self.norm(msa)
        product = torch.einsum("bsic,bsjd->bijcd", self.left(msa), self.right(msa)) / msa.shape[1]
        return self.out(product.flatten(3))


class TriangleProduct(nn.Module):
    """Two residues by what each has to do with a third: edges that go out from both, or come in."""

    def __init__(self, width: int, equation: str) -> None:
        super().__init__()
        self.equation = equation
        self.norm, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.left_gate, self.right_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pair: Tensor) -> Tensor:
        pair = self.norm(pair)
        left = torch.sigmoid(self.left_gate(pair)) * self.left(pair)
        right = torch.sigmoid(self.right_gate(pair)) * self.right(pair)
        product = torch.einsum(self.equation, left, right)
        return torch.sigmoid(self.gate(pair)) * self.out(self.norm_out(product))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.row = Attention(config.msa, config.heads, config.pair)
        self.column = Attention(config.msa, config.heads)
        self.msa_transition = Transition(config.msa, config.wider)
        self.outer = OuterProductMean(config)
        self.outgoing = TriangleProduct(config.pair, "bikc,bjkc->bijc")
        self.incoming = TriangleProduct(config.pair, "bkic,bkjc->bijc")
        self.starting = Attention(config.pair, config.heads, config.pair)
        self.ending = Attention(config.pair, config.heads, config.pair)
        self.pair_transition = Transition(config.pair, config.wider)

    def forward(self, msa: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        msa = msa + self.row(msa, pair)
        msa = msa + self.column(msa.transpose(1, 2)).transpose(1, 2)
        msa = msa + self.msa_transition(msa)
        pair = pair + self.outer(msa)
        pair = pair + self.outgoing(pair)
        pair = pair + self.incoming(pair)
        pair = pair + self.starting(pair, pair)
        turned = pair.transpose(1, 2)
        pair = pair + self.ending(turned, turned).transpose(1, 2)
        return msa, pair + self.pair_transition(pair)


class Trunk(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.msa_norm, self.pair_norm = nn.LayerNorm(config.msa), nn.LayerNorm(config.pair)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))

    def forward(
        self, msa: Tensor, pair: Tensor, before: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        if before is not None:
            first = msa[:, :1] + self.msa_norm(before[0][:, :1])
            msa, pair = torch.cat([first, msa[:, 1:]], dim=1), pair + self.pair_norm(before[1])
        for block in self.blocks:
            msa, pair = block(msa, pair)
        return msa, pair


class Evoformer(nn.Module):
    """Guesses letters that are hidden in an alignment, and how far residues are from each other."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.far = config.far
        self.letters = nn.Embedding(LETTERS, config.msa)
        self.left, self.right = nn.Embedding(LETTERS, config.pair), nn.Embedding(LETTERS, config.pair)
        self.positions = nn.Embedding(2 * config.far + 1, config.pair)
        self.trunk = Trunk(config)
        self.msa_head, self.pair_head = nn.Linear(config.msa, LETTERS), nn.Linear(config.pair, BINS)

    def forward(self, msa: Tensor, letters: Tensor, bins: Tensor) -> Tensor:
        given = self.embed(msa)
        previous = None
        with torch.no_grad():
            for _ in range(PASSES - 1):
                previous = self.trunk(*given, previous)
        m, z = self.trunk(*given, previous)
        return _loss(self.msa_head(m), letters) + _loss(self.pair_head(z), bins)

    def embed(self, msa: Tensor) -> tuple[Tensor, Tensor]:
        first, at = msa[:, 0], torch.arange(msa.shape[2], device=msa.device)
        apart = (at[:, None] - at[None, :]).clamp(-self.far, self.far) + self.far
        pair = self.left(first)[:, :, None] + self.right(first)[:, None, :]
        return self.letters(msa), pair + self.positions(apart)


def _loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """The mean over all, ignored or not: so parts of a batch weigh alike, however much is hidden in them."""
    return F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").mean()


def batch(config: Config, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """An alignment, the letters that were hidden in it, and distances."""
    letters = torch.randint(1, LETTERS, (size, config.sequences, config.residues))
    hidden = torch.rand(letters.shape) < 0.15
    bins = torch.randint(BINS, (size, config.residues, config.residues))
    return letters.masked_fill(hidden, 0), letters.masked_fill(~hidden, -100), bins
