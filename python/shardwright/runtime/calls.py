"""Local code under autograd, cut off from what made its arguments.

After a call only two things are kept: the graph's edges at its results, and a slot for the gradient
of each argument that needs one. Neither holds a tensor, so activations live only as long as autograd
itself needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from ..errors import RuntimeFault


class Slot:
    """Where the gradient of an argument arrives."""

    def __init__(self, x: Tensor):
        self.like = (x.shape, x.dtype, x.device)
        self.grad: Tensor | None = None

    def take(self) -> Tensor:
        """The gradient; zeros if none arose, since others may wait for it in a collective."""
        grad, self.grad = self.grad, None
        shape, dtype, device = self.like
        return torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad


@dataclass
class Saved:
    """What backward needs of a call."""

    slots: list[Slot]
    edges: list[GradientEdge]
    # Positions of the edges among the floating-point results, and how many of those there are.
    places: list[int]
    floating: int
    again: tuple[Callable[..., Any], tuple[Any, ...]] | None = None


class _Enter(torch.autograd.Function):
    """The start of a call's graph. The anchor only makes autograd come back here."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, box: list[Tensor], slot: Slot) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.slot = slot
        return box[0].detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        ctx.slot.grad = grad
        return None, None, None


def call_saving(
    function: Callable[..., Any], args: tuple[Any, ...], leaves: Container[int]
) -> tuple[Any, Saved]:
    """The results, detached but marked where they need a gradient; and what backward needs.

    `leaves` are the `id`s of tensors that keep their own gradients.
    """
    anchor = torch.zeros((), requires_grad=True)
    slots: list[Slot] = []

    def entered(x: Any) -> Any:
        if not _is_cut(x, leaves):
            return x
        slots.append(Slot(x))
        return _Enter.apply(anchor, [x], slots[-1])

    with torch.enable_grad():
        results = function(*map(entered, args))
    saved = Saved(slots, [], [], 0)
    values = results if isinstance(results, tuple) else (results,)
    marked = tuple(_leave(value, saved) for value in values)
    return (marked if isinstance(results, tuple) else marked[0]), saved


def call_forgetting(
    function: Callable[..., Any], args: tuple[Any, ...], leaves: Container[int]
) -> tuple[Any, Saved]:
    """The same, but keeps the arguments instead of what is inside."""
    kept = tuple(x.detach().requires_grad_() if _is_cut(x, leaves) else x for x in args)
    with saved_tensors_hooks(lambda _: None, _never):
        marked, saved = call_saving(function, args, leaves)
    saved.edges = []
    saved.again = (function, kept)
    return marked, saved


def match(saved: Saved, grads: Sequence[Tensor | None]) -> tuple[list[GradientEdge], list[Tensor]]:
    """Pairs the gradients that there are with the results they belong to."""
    if len(grads) == len(saved.edges):
        given = list(grads)
    elif len(grads) == saved.floating:
        given = [grads[place] for place in saved.places]
    else:
        raise RuntimeFault(
            "SW0608",
            f"backward gives {len(grads)} gradients to a call,"
            f" of whose results {len(saved.edges)} need one",
            why="the program and PyTorch disagree about what is differentiable",
            fix="report this as a bug, with the model",
        )
    pairs = [
        (edge, grad) for edge, grad in zip(saved.edges, given, strict=True) if grad is not None
    ]
    return [edge for edge, _ in pairs], [grad for _, grad in pairs]


def _is_cut(x: Any, leaves: Container[int]) -> bool:
    return isinstance(x, Tensor) and x.requires_grad and id(x) not in leaves


def _leave(value: Any, saved: Saved) -> Any:
    if not isinstance(value, Tensor):
        return value
    saved.floating += value.is_floating_point() or value.is_complex()
    if not value.requires_grad:
        return value
    saved.edges.append(get_gradient_edge(value))
    saved.places.append(saved.floating - 1)
    return value.detach().requires_grad_()


def _never(_: Any) -> Tensor:
    raise AssertionError("nothing was saved here")
