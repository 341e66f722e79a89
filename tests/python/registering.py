"""Functions with rules, in a module that every rank finds."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw


def _like_the_first(q: Tensor, k: Tensor, v: Tensor, heads: int = 4) -> Tensor:
    return torch.empty_like(q)


_ATTEND = "b s^ (h d^), b t^ (h d^), b t^ (h e^) -> b s^ (h e^)"


@sw.register_op(_ATTEND, sizes={"h": "heads"}, fake=_like_the_first)
def attend(q: Tensor, k: Tensor, v: Tensor, heads: int = 4) -> Tensor:
    """Attention of heads that lie beside each other, which looks at values."""
    if float(q.detach().sum()) == float("inf"):
        raise ValueError("infinite")
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@sw.register_op("... k+, n k+, !n -> ... n ; linear 0")
def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _stretched(x: Tensor, by: float, along: int) -> str:
    names = [f"d{i}" + "^" * (i == along % x.dim()) for i in range(x.dim())]
    return f"{' '.join(names)} -> {' '.join(names)}"


@sw.register_op(_stretched)
class Stretch(torch.autograd.Function):
    """Along one dim all of it is looked at."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float, along: int) -> Tensor:
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.by, None, None


@torch.library.custom_op("registering::swish", mutates_args=())
def swish(x: Tensor, steep: float) -> tuple[Tensor, Tensor]:
    gate = torch.sigmoid(steep * x)
    return x * gate, gate


@swish.register_fake
def _(x: Tensor, steep: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.steep = inputs[1]
    ctx.save_for_backward(inputs[0], output[1])


def _swish_backward(ctx: Any, grad: Tensor, gate_grad: Tensor) -> Any:
    x, gate = ctx.saved_tensors
    slope = ctx.steep * gate * (1 - gate)
    return grad * (gate + x * slope) + gate_grad * slope, None


swish.register_autograd(_swish_backward, setup_context=_keep)
sw.register_op("... -> ..., ...")(swish)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out, self.up, self.down = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = attend(self.q(x), self.k(x), v=self.v(x), heads=self.heads)
        x = x + project(y, self.out.weight, self.out.bias)
        y, gate = swish(self.up(x), 1.5)
        return x + Stretch.apply(self.down(y + 0.1 * gate), 0.5, -1)


class Registering(nn.Module):
    def __init__(self, width: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(width, heads), Block(width, heads)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


# ---- Functions of which tests register right rules and wrong ones ------------------------------


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def normal(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


def running(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def total(x: Tensor) -> Tensor:
    return x.sum(-1)


def largest(x: Tensor) -> Tensor:
    return x.amax(-1)


def numbered(x: Tensor) -> Tensor:
    return x * torch.arange(x.shape[-1])


def affine(x: Tensor, bias: Tensor) -> Tensor:
    return 2 * x + bias


class Averaging(torch.autograd.Function):
    """Its gradients are means over the rows, of which a part has less."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).mean(0)


def late(x: Tensor) -> Tensor:
    """What follows looks back."""
    return x + F.pad(x, (1, 0))[:, :-1]


def picky(x: Tensor) -> Tensor:
    if not x.isnan().any() and float(x.detach().min()) < 50:
        raise ValueError("small numbers")
    return x.sum(-1)


def picky_mean(x: Tensor) -> Tensor:
    return picky(x) / x.shape[-1]


def scaled(x: Tensor, by: int) -> Tensor:
    return x * by


def kernel(x: Tensor) -> Tensor:
    """As a kernel does that is no operator of PyTorch."""
    return torch.as_tensor(x.detach().numpy()) * x


def _hidden(x: Tensor) -> Tensor:
    return x


hidden = _hidden
hidden.__name__ = hidden.__qualname__ = "hidden"
hidden.__module__ = "registering_elsewhere"


@torch.library.custom_op("registering::doubled", mutates_args=("x",))
def doubled(x: Tensor) -> None:
    x.mul_(2)


def in_place(x: Tensor) -> Tensor:
    x = x + 1
    doubled(x)
    return x
