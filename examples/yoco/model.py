"""YOCO: keys and values are cached once, after Sun et al., "You Only Cache Once" (2024).

The first half of the layers looks back a window. Of what it makes, keys and values are computed once, and
all layers of the second half attend to these. Written for one device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocabulary: int = 256
    width: int = 64
    layers: int = 4
    heads: int = 4
    groups: int = 2
    window: int = 16


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def split(x: Tensor, heads: int) -> Tensor:
    batch, time, width = x.shape
    return x.view(batch, time, heads, width // heads).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def repeated(x: Tensor, heads: int) -> Tensor:
    """Heads of keys or values, each for several of queries."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


class Window(nn.Module):
    """Attention to the last few positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.window = config.heads, config.window
        self.query, self.key, self.value, self.out = (
            nn.Linear(config.width, config.width, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part(x), self.heads) for part in (self.query, self.key, self.value))
        at = torch.arange(x.shape[1], device=x.device)
        behind = at[:, None] - at
        mask = (behind >= 0) & (behind < self.window)
        return self.out(joined(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


class Cross(nn.Module):
    """Attention to keys and values that are there."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.out = (nn.Linear(config.width, config.width, bias=False) for _ in range(2))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q = split(self.query(x), self.heads)
        k, v = repeated(keys, self.heads), repeated(values, self.heads)
        return self.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class Block(nn.Module):
    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = attention, Mlp(width)

    def forward(self, x: Tensor, *cache: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), *cache)
        return x + self.mlp(self.before_mlp(x))


class Yoco(nn.Module):
    def __init__(self, **sizes: int) -> None:
        super().__init__()
        config = Config(**sizes)
        width, narrow = config.width, config.width // config.heads * config.groups
        self.groups = config.groups
        self.embedding = nn.Embedding(config.vocabulary, width)
        self.self_decoder = nn.ModuleList(Block(Window(config), width) for _ in range(config.layers // 2))
        self.before_cache = nn.RMSNorm(width)
        self.keys, self.values = (nn.Linear(width, narrow, bias=False) for _ in range(2))
        self.cross_decoder = nn.ModuleList(Block(Cross(config), width) for _ in range(config.layers // 2))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, config.vocabulary, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for block in self.self_decoder:
            x = block(x)
        cached = self.before_cache(x)
        cache = split(self.keys(cached), self.groups), split(self.values(cached), self.groups)
        for block in self.cross_decoder:
            x = block(x, *cache)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def full() -> tuple[nn.Module, dict[str, Tensor]]:
    """3.6 billion parameters, without memory, and a micro-batch of 8 sequences."""
    with torch.device("meta"), torch.no_grad():
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Yoco(vocabulary=100288, width=3072, layers=26, heads=24, groups=8, window=1024)
        finally:
            torch.set_default_dtype(torch.float32)
        ids = torch.zeros(8, 4096, dtype=torch.int64)
    return model, {"input_ids": ids, "labels": ids}
