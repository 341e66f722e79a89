"""The models of `published.csv`, with the operators that the programs ran which were measured.

What a compiler would make one kernel of is written as PyTorch ran it without one: norms and rotary
embeddings are many small operators, and a loss is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Example = tuple[nn.Module, tuple[Tensor, Tensor]]


class RmsNorm(nn.Module):
    """In float32, as `nn.RMSNorm` was before it became one kernel (torch 2.9)."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide * scale * self.weight).to(x.dtype)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding: pairs of elements are complex numbers, which are turned."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles).flatten(3).to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, inner: int):
        super().__init__()
        size = width // heads
        self.size, self.copies = size, heads // kv_heads
        self.attention_norm, self.ffn_norm = RmsNorm(width), RmsNorm(width)
        self.wq, self.wo = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(width, kv_heads * size, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        y = self.attention_norm(x)
        q, k, v = (part(y).unflatten(-1, (-1, self.size)) for part in (self.wq, self.wk, self.wv))
        q, k = turned(q, angles), turned(k, angles)
        k, v = (self.spread(part) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))

    def spread(self, x: Tensor) -> Tensor:
        """A head of keys or values for each head of queries."""
        return x.unsqueeze(3).expand(-1, -1, -1, self.copies, -1).flatten(2, 3)


class Llama(nn.Module):
    """As torchtitan has it."""

    def __init__(
        self, layers: int, width: int, heads: int, inner: int, words: int, length: int, recompute: str
    ):
        super().__init__()
        self.recompute = recompute
        self.tok_embeddings = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, 8, inner) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.output = nn.Linear(width, words, bias=False)
        self.angles = nn.Buffer(torch.zeros(1, length, 1, width // heads // 2, 2))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x, angles = self.tok_embeddings(tokens), torch.view_as_complex(self.angles)
        for layer in self.layers:
            x = self.run(layer, x, angles)
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def run(self, layer: nn.Module, x: Tensor, angles: Tensor) -> Tensor:
        if self.recompute == "none":
            return layer(x, angles)
        context: dict[str, Any] = {}
        if self.recompute == "selective":
            context = {"context_fn": partial(create_selective_checkpoint_contexts, every_second_product())}
        return checkpoint(layer, x, angles, use_reentrant=False, **context)


def every_second_product() -> Callable[..., CheckpointPolicy]:
    """Attention is kept, and of products each second one."""
    products = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name = str(operator)
        if "attention" in name:
            return CheckpointPolicy.MUST_SAVE
        if "mm" in name or "linear" in name:
            products[context.is_recompute] += 1
            if products[context.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy


class MptBlock(nn.Module):
    def __init__(self, width: int, heads: int, inner: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.wqkv, self.out_proj = (nn.Linear(width, n * width, bias=False) for n in (3, 1))
        self.up_proj, self.down_proj = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(inner, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.wqkv(self.norm_1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(y.transpose(1, 2).flatten(2))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm_2(x))))


class Mpt(nn.Module):
    """As llm-foundry has it: words in and out share a table, and nothing has a bias."""

    def __init__(
        self, layers: int, width: int, heads: int, inner: int, words: int, length: int, recompute: str
    ):
        super().__init__()
        self.recompute = recompute
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(MptBlock(width, heads, inner) for _ in range(layers))
        self.norm_f = nn.LayerNorm(width, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x) if self.recompute == "none" else checkpoint(block, x, use_reentrant=False)
        logits = F.linear(self.norm_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


MODELS = {"Llama": Llama, "MPT": Mpt}


def build(name: str, *sizes: int, batch: int, length: int, recompute: str) -> Example:
    """On `meta`. Of a name the kind counts; sizes are layers, width, heads, inner width and words."""
    with torch.device("meta"):
        model = MODELS[name.split("-")[0]](*sizes, length, recompute)
        return model, _words(batch, length)


def _words(batch: int, length: int) -> tuple[Tensor, Tensor]:
    words = torch.zeros(batch, length, dtype=torch.long, device="cpu")
    return words, words.clone()
