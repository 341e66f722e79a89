"""`sw.experts`: a mixture of experts of one's own, in one operator that plans divide by experts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .capture import lines
from .errors import CaptureError
from .library import ACTIVATIONS

_NAMES: dict[Any, str] = {F.gelu: "gelu", F.relu: "relu", torch.relu: "relu", F.silu: "silu"}


def experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    *,
    activation: str | Callable[[Tensor], Tensor] = "silu",
    gated: bool = True,
    capacity: float | None = None,
) -> Tensor:
    """Each token's weighted sum of what its experts give. Differentiable, and one operator of the graph.

    `x` is `[..., width]`. `chosen` and `weights` are `[..., k]`: the numbers of the k experts of each token,
    and what each counts. `up` is `[experts, 2 * inner, width]`, the rows of the gate first, or
    `[experts, inner, width]` where not `gated`; `down` is `[experts, width of the result, inner]`. Expert e
    gives `down[e] @ (activation(gate) * value)`, or `down[e] @ activation(value)`.

    With a `capacity` an expert takes no more than so many times its even share of all rows, rounded down, the
    tokens in their order, their first choices before the second ones. What it does not take adds nothing.
    """
    place = lines.with_source(lines.trace_of_caller(inspect.currentframe()))
    name = _activation(activation, place)
    _refuse_shapes(x, chosen, weights, up, down, gated, place)
    total, slots = up.shape[0], chosen.shape[-1]
    numbers = chosen.reshape(-1, slots)
    if capacity is not None:
        numbers = _taken(numbers, total, _room(capacity, numbers.numel(), total, place))
    rows = torch.ops.shardwright.experts(
        x.reshape(-1, x.shape[-1]),
        numbers,
        weights.reshape(-1, slots),
        up,
        down,
        name,
        gated,
        False,
        capacity is not None,
    )
    return rows.reshape(*x.shape[:-1], down.shape[1])  # type: ignore[no-any-return]


def _room(capacity: float, rows: int, total: int, place: str | None) -> int:
    """How many rows each expert takes."""
    room = int(capacity * rows / total)
    if room < 1:
        enough = math.ceil(1e4 * total / max(rows, 1)) / 1e4
        raise CaptureError(
            "SW0149",
            f"a capacity of {capacity:g} drops every token",
            place=place,
            why=f"the even share of {total} experts is {rows / total:g} of {rows} rows, and {capacity:g}"
            " times that is less than one row",
            fix=f"give a capacity of at least {enough:g}, or None to drop nothing",
        )
    return room


def _taken(chosen: Tensor, total: int, room: int) -> Tensor:
    """The numbers of experts, with one that means none where an expert has no room left."""
    chosen = torch.where(chosen < 0, chosen + total, chosen)
    # All first choices stand before all second ones.
    waiting = chosen.t().reshape(-1, 1) == torch.arange(total, device=chosen.device)
    places = waiting.cumsum(0).masked_fill(~waiting, 0).sum(-1)
    fits = (places <= room).reshape(chosen.t().shape).t()
    return torch.where(fits, chosen, -total - 1)


def _activation(activation: Any, place: str | None) -> str:
    name = _NAMES.get(activation, activation)
    if name in ACTIVATIONS:
        return str(name)
    known = ", ".join(f"`{name}`" for name in ACTIVATIONS)
    raise CaptureError(
        "SW0149",
        f"experts cannot have the activation {activation!r}",
        place=place,
        why="the activation between the matrices of an expert is known by its name",
        fix=f"give one of {known}, or write the experts out as matrices that are looked up",
    )


def _refuse_shapes(
    x: Tensor, chosen: Tensor, weights: Tensor, up: Tensor, down: Tensor, gated: bool, place: str | None
) -> None:
    wrong = None
    if up.dim() != 3 or down.dim() != 3 or up.shape[0] != down.shape[0] or up.shape[0] == 0:
        wrong = "`up` and `down` are not matrices of the same number of experts"
    elif x.dim() < 2 or x.shape[-1] != up.shape[2]:
        wrong = "the last dim of `x` is not that of `up`"
    elif up.shape[1] != down.shape[2] * (2 if gated else 1):
        wrong = f"`up` gives {up.shape[1]} numbers, of which `down` takes {down.shape[2]}"
    elif chosen.shape != weights.shape or chosen.shape[:-1] != x.shape[:-1]:
        wrong = "`chosen` and `weights` do not have a row for each of `x`"
    elif chosen.is_floating_point():
        wrong = "`chosen` are not integers"
    if wrong is not None:
        given = (
            (name, list(t.shape)) for name, t in zip(_GIVEN, (x, chosen, weights, up, down), strict=True)
        )
        raise CaptureError(
            "SW0149",
            f"experts do not fit together: {wrong}",
            place=place,
            why="given are " + ", ".join(f"{name} {shape}" for name, shape in given),
            fix="`x` is [..., width], `chosen` and `weights` [..., k], `up` [experts, 2 * inner, width]"
            " (inner where not gated), `down` [experts, width, inner]",
        )


_GIVEN = ("x", "chosen", "weights", "up", "down")
