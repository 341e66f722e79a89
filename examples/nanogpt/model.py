"""A small GPT, written for one device. Nothing in it knows that it will run on several."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    vocabulary: int
    context: int = 32
    layers: int = 2
    heads: int = 4
    width: int = 64
    dropout: float = 0.0


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.before_mlp = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.before_attention(x)))
        return x + self.drop(self.down(F.gelu(self.up(self.before_mlp(x)))))


class Gpt(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._initialise)
        for block in self.blocks:
            for into_residual in (block.attention.out, block.down):
                nn.init.normal_(into_residual.weight, std=0.02 / math.sqrt(2 * config.layers))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)


def tiny() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Gpt(Config(vocabulary=64)), (torch.randint(64, (4, 32)), torch.randint(64, (4, 32)))


def full() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The 124 million parameters of the smallest GPT-2, without memory, and 64 texts."""
    with torch.device("meta"):
        model = Gpt(Config(vocabulary=50304, context=1024, layers=12, heads=12, width=768)).bfloat16()
        ids = torch.zeros(64, 1024, dtype=torch.int64)
    return model, (ids, ids)
