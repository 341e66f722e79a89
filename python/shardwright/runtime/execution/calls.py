"""Local code under autograd, cut off from what made its arguments.

After a call only two things are kept: the graph's edges at its results, and a slot for the gradient
of each argument that needs one. Neither holds a tensor, so activations live only as long as
autograd itself needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge, saved_tensors_hooks

from ...as_python import is_inside
from ...errors import RuntimeFault
from ..guards.part_gradients import writable
from ..programs.program import Needs
from .forgotten import Forgotten
from .offload import Away
from .split_backward import Boxes

# Of a call whose backward has halves: the memory that it reads and that is there for the first of them only.
Gathered = frozenset[int]


class Slot:
    """Where the gradient of an argument arrives."""

    def __init__(self, x: Tensor):
        self.like = (x.shape, x.dtype, x.device)
        self.grad: Tensor | None = None

    def take(self) -> Tensor:
        """The gradient; zeros if none arose, since others may wait for it in a collective."""
        grad, self.grad = self.grad, None
        shape, dtype, device = self.like
        return torch.zeros(shape, dtype=dtype, device=device) if grad is None else writable(grad)


@dataclass
class Saved:
    """What backward needs of a call."""

    slots: list[Slot]
    # One for each result that needs a gradient; `None` where autograd has no use for it.
    edges: list[GradientEdge | None]
    # Where the graph ends, one for each slot.
    entries: list[Node]
    # What backward is given again.
    forgotten: Forgotten | None = None
    # What is on the host meanwhile.
    away: Away | None = None
    # What is there between the halves of its backward, if it has two.
    boxes: Boxes | None = None


# What a call's graph leads back to. It is given no gradient, and so serves all calls.
_ANCHOR = torch.zeros((), requires_grad=True)


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


class _Marked(torch.autograd.Function):
    """A tensor that needs a gradient and is no leaf. Nothing goes back from it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, box: list[Tensor]) -> Tensor:
        return box[0].detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, None


def call_saving(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    leaves: Container[int],
    needs: Needs | None,
) -> tuple[Any, Saved]:
    """The results, detached and marked where they need a gradient; and what backward needs.

    `leaves` are the `id`s of tensors that keep their own gradients. Gradients are on throughout, also for
    what backward computes again.
    """
    if torch.is_grad_enabled():
        return _call_saving(function, args, leaves, needs)
    with torch.enable_grad():
        return _call_saving(function, args, leaves, needs)


def _call_saving(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    leaves: Container[int],
    needs: Needs | None,
) -> tuple[Any, Saved]:
    entered = list(args)
    slots: list[Slot] = []
    entries: list[Node] = []
    for at in _cut_places(args, leaves, needs):
        slots.append(Slot(args[at]))
        entered[at] = _Enter.apply(_ANCHOR, [args[at]], slots[-1])
        entries.append(entered[at].grad_fn)
    results = function(*entered)
    values = list(results) if isinstance(results, tuple) else [results]
    saved = Saved(slots, [], entries)
    marked = _marked_places(values, leaves, needs)
    for at in marked:
        saved.edges.append(_edge(values[at]) if _leads_back(values[at], leaves) else None)
        values[at] = values[at].detach().requires_grad_()
    # What needs no gradient must not hold the graph that made it. Who reads a leaf that is given as it is
    # must not take it for one.
    for at, x in enumerate(values):
        if isinstance(x, Tensor) and (x.requires_grad or id(x) in leaves) and at not in marked:
            values[at] = x.detach()
    return (tuple(values) if isinstance(results, tuple) else values[0]), saved


def call_forgetting(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    leaves: Container[int],
    needs: Needs | None,
) -> Any:
    """The same results, of which backward needs nothing: it calls the function again."""
    with saved_tensors_hooks(_inside_only, _never):
        results = call_saving(function, args, leaves, needs)[0]
    if isinstance(results, tuple):
        return tuple(_not_held(x) for x in results)
    return _not_held(results)


@torch.enable_grad()
def _not_held(x: Any) -> Any:
    """A result that needs a gradient as before, and that a sum does not hold, as it would a leaf."""
    if not isinstance(x, Tensor) or not x.requires_grad:
        return x
    return _Marked.apply(_ANCHOR, [x])


def call_giving(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    leaves: Container[int],
    needs: Needs | None,
    away: Away | None = None,
    *,
    halves: Gathered | None = None,
) -> tuple[Any, Saved]:
    """As `call_saving`, but nothing is kept of its arguments: backward is given them again."""
    given = [x for x in args if isinstance(x, Tensor) and id(x) not in leaves]
    forgotten = Forgotten(given, away)
    # A model may take gradients in its forward, which go back through a part of the call at once.
    with forgotten.given([x.detach() for x in given]):
        results, saved = _call_packing(function, args, leaves, needs, forgotten, halves=halves)
    saved.forgotten = forgotten
    return results, saved


def call_sending(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    leaves: Container[int],
    needs: Needs | None,
    away: Away,
    *,
    forget: bool,
    halves: Gathered | None = None,
) -> tuple[Any, Saved]:
    """As `call_saving` or `call_giving`, but what is kept goes `away`."""
    if forget:
        results, saved = call_giving(function, args, leaves, needs, away, halves=halves)
    else:
        results, saved = _call_packing(function, args, leaves, needs, away, halves=halves)
    away.send()
    saved.away = away
    return results, saved


def call_in_halves(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    leaves: Container[int],
    needs: Needs | None,
    gathered: Gathered = frozenset(),
) -> tuple[Any, Saved]:
    """As `call_saving`, but its backward may have two halves."""
    return _call_packing(function, args, leaves, needs, None, halves=gathered)


def _call_packing(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    leaves: Container[int],
    needs: Needs | None,
    packing: Forgotten | Away | None,
    *,
    halves: Gathered | None,
) -> tuple[Any, Saved]:
    boxes = None if halves is None else Boxes(packing, halves)
    hooks = boxes or packing
    with hooks.hooks() if hooks else nullcontext():
        results, saved = call_saving(function, args, leaves, needs)
    saved.boxes = boxes
    return results, saved


def match(saved: Saved, grads: Sequence[Tensor | None]) -> tuple[list[GradientEdge], list[Tensor]]:
    """Pairs the gradients that there are with the results they belong to."""
    if len(grads) != len(saved.edges):
        raise RuntimeFault(
            "SW0708",
            f"backward gives {len(grads)} gradients to a call, of whose results {len(saved.edges)} need one",
            why="the program and PyTorch disagree about what is differentiable",
            fix="report this as a bug, with the model",
        )
    pairs = zip(saved.edges, grads, strict=True)
    both = [(edge, grad) for edge, grad in pairs if edge is not None and grad is not None]
    return [edge for edge, _ in both], [grad for _, grad in both]


def _cut_places(args: Sequence[Any], leaves: Container[int], needs: Needs | None) -> list[int]:
    """The positions of the arguments that get a slot."""
    tensors = [at for at, x in enumerate(args) if isinstance(x, Tensor) and id(x) not in leaves]
    if needs is not None:
        return [tensors[number] for number in needs.arguments]
    return [at for at in tensors if args[at].requires_grad]


def _marked_places(values: Sequence[Any], leaves: Container[int], needs: Needs | None) -> list[int]:
    if needs is not None:
        return needs.results
    return [at for at, x in enumerate(values) if isinstance(x, Tensor) and _leads_back(x, leaves)]


def _edge(x: Tensor) -> GradientEdge:
    if not x.is_sparse:
        return get_gradient_edge(x)
    # PyTorch has no views of sparse tensors, by which it would keep the node alive.
    assert x.grad_fn is not None
    return GradientEdge(x.grad_fn, x.output_nr, x.clone().grad_fn)


def _leads_back(x: Tensor, leaves: Container[int]) -> bool:
    """Whether a gradient goes back from a result. A view that was made while gradients were off says that it
    requires one, as what it views does, and leads nowhere."""
    return x.requires_grad and (x.grad_fn is not None or id(x) in leaves)


def _inside_only(x: Tensor) -> Tensor | None:
    """A module that runs as it is may have gradients of its own, and is through with them when it ends."""
    return x if is_inside() else None


def _never(x: Tensor | None) -> Tensor:
    assert x is not None, "nothing was saved here"
    return x
