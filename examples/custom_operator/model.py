"""A model with an operator of its own: what `torch.library` needs, and a rule that says how it is split.

A kernel for GPUs would be registered beside `_cpu`, with `device_types="cuda"`; the rule is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import shardwright as sw


@torch.library.custom_op("examples::gated_norm", mutates_args=(), device_types="cpu")
def gated_norm(x: Tensor, gate: Tensor) -> Tensor:
    """Of each head the normed values, times what its gate lets through: `[batch, time, heads, width]`."""
    return _plain(x, gate)


def _plain(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * torch.sigmoid(gate)


@gated_norm.register_fake
def _shapes(x: Tensor, gate: Tensor) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        inputs = [value.detach().requires_grad_() for value in ctx.saved_tensors]
        return torch.autograd.grad(_plain(*inputs), inputs, grad)


gated_norm.register_autograd(_backward, setup_context=_keep)

# Batch, time and heads may be divided; the last dim, over which the mean goes, may not.
sw.register_op("b t h d^, b t h d^ -> b t h d^")(torch.ops.examples.gated_norm)


class Mixer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.value, self.gate))
        return x + self.out(torch.ops.examples.gated_norm(value, gate).flatten(-2))


class Model(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mixer(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x - wanted).square().mean()


def tiny() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Model(32, 4, 2), (torch.randn(4, 8, 32), torch.randn(4, 8, 32))


def full() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """24 layers of 8192, without memory."""
    with torch.device("meta"):
        x = torch.zeros(8, 4096, 8192, dtype=torch.bfloat16)
        return Model(8192, 64, 24).bfloat16(), (x, x)
