"""RetNet: retention in the place of attention, after Sun et al., "Retentive Network" (2023).

A head forgets by its own rate. Within a chunk, retention is a masked product like attention. Between chunks
goes a state of one matrix a head, however long the text is. Written for one device.
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
    layers: int = 2
    heads: int = 4
    chunk: int = 32


def rotated(x: Tensor) -> Tensor:
    """Each pair of features turned by its position, as in rotary embeddings. Time is the last dim but one."""
    time, width = x.shape[-2:]
    rates = 10000 ** -torch.linspace(0, 1, width // 2, dtype=x.dtype, device=x.device)
    angles = torch.arange(time, dtype=x.dtype, device=x.device)[:, None] * rates
    even, odd = x[..., ::2], x[..., 1::2]
    turned = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    return torch.stack(turned, dim=-1).flatten(-2)


class Retention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.chunk = config.heads, config.chunk
        self.query, self.key, self.value, self.gate, self.out = (
            nn.Linear(config.width, config.width, bias=False) for _ in range(5)
        )
        # From quick to slow: a head keeps so much of its state a step.
        self.register_buffer("keeps", 1 - 2.0 ** -torch.linspace(5, 8, config.heads), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (self._split(part(x)) for part in (self.query, self.key, self.value))
        q, k = rotated(q), rotated(k) * (width // self.heads) ** -0.5
        y = self._chunked(q, k, v)
        # Of each head its own mean and scale, as a group norm.
        y = F.layer_norm(y, y.shape[-1:]).transpose(1, 2).reshape(batch, time, width)
        return self.out(F.silu(self.gate(x)) * y)

    def _split(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        return x.view(batch, time, self.heads, width // self.heads).transpose(1, 2)

    def _chunked(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Chunk after chunk; what came before is in the state."""
        found, state = [], None
        for q_now, k_now, v_now in zip(*(x.split(self.chunk, dim=2) for x in (q, k, v)), strict=True):
            found.append(self._within(q_now, k_now, v_now))
            size = q_now.shape[2]
            steps = torch.arange(size, dtype=q.dtype, device=q.device)
            keeps = self.keeps.to(q.dtype)[:, None]
            if state is not None:
                found[-1] = found[-1] + (q_now * (keeps ** (steps + 1))[..., None]) @ state
            added = (k_now * (keeps ** (size - 1 - steps))[..., None]).transpose(2, 3) @ v_now
            state = added if state is None else state * keeps[..., None] ** size + added
        return torch.cat(found, dim=2)

    def _within(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        steps = torch.arange(q.shape[2], dtype=q.dtype, device=q.device)
        behind = steps[:, None] - steps
        decay = torch.where(behind < 0, 0.0, self.keeps.to(q.dtype)[:, None, None] ** behind.clamp(min=0))
        return (q @ k.transpose(2, 3) * decay) @ v


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.before_retention, self.before_mlp = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.retention = Retention(config)
        self.up = nn.Linear(config.width, 2 * config.width, bias=False)
        self.down = nn.Linear(2 * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.retention(self.before_retention(x))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class RetNet(nn.Module):
    def __init__(self, **sizes: int) -> None:
        super().__init__()
        config = Config(**sizes)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def full() -> tuple[nn.Module, dict[str, Tensor]]:
    """Five billion parameters, without memory, and a micro-batch of 8 sequences."""
    with torch.device("meta"), torch.no_grad():
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = RetNet(vocabulary=50304, width=4096, layers=32, heads=16, chunk=512)
        finally:
            torch.set_default_dtype(torch.float32)
        ids = torch.zeros(8, 2048, dtype=torch.int64)
    return model, {"input_ids": ids, "labels": ids}
