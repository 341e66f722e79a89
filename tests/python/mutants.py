"""A model like Llama, programs of it, and faults that are planted into their text."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from shardwright._core import verify

Change = tuple[str, str]
WIDTH, INNER, WORDS, LENGTH, ROWS = 16, 32, 32, 8, 4


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = (f(x).view(rows, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(rows, length, width))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.norm_1, self.attn, self.norm_2, self.mlp = Norm(), Attention(heads), Norm(), Mlp()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.norm_1(x), cos, sin)
        return x + self.mlp(self.norm_2(x))


class Llama(nn.Module):
    def __init__(self, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), Norm()
        self.layers = nn.ModuleList(Layer(heads) for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        rates = 100.0 ** (-torch.arange(0, WIDTH // heads, 2) * heads / WIDTH)
        angles = torch.outer(torch.arange(LENGTH).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def llama() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    module = Llama().double()
    labels = torch.randint(WORDS, (ROWS, LENGTH))
    labels[0, :5] = -100  # ranks count other numbers of labels
    return module, (torch.randint(WORDS, (ROWS, LENGTH)), labels)


@functools.cache
def program(plan: str, devices: int) -> sw.Bundle:
    """Of that model; it is proved."""
    return bundle_of(*llama(), plan, devices)


def bundle_of(module: nn.Module, args: Any, plan: Any, devices: int) -> sw.Bundle:
    bundle, _ = sw.compile_model(module, args, plan=plan, devices=devices)
    assert verify(bundle.graph_text, bundle.files)
    return bundle


def mutated(bundle: sw.Bundle, changes: Iterable[Change]) -> dict[str, str]:
    """Its files with texts replaced, each where it is found first, in the first file that has it."""
    files = dict(bundle.files)
    for old, new in changes:
        name = next((name for name, text in files.items() if old in text), None)
        assert name is not None and old != new, f"nothing to change: {old}"
        files[name] = files[name].replace(old, new, 1)
    return files


def refusal(bundle: sw.Bundle, *changes: Change) -> sw.CheckError:
    """What the check says of the program with these changes: it has to refuse it."""
    try:
        verify(bundle.graph_text, mutated(bundle, changes))
    except sw.CheckError as error:
        return error
    raise AssertionError("the check lets the fault through")
