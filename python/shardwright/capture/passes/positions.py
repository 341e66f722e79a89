"""Indexing by the positions of a tensor's own dims is a view of it.

Masks are often written as functions of index tensors, `mask[batch[:, None], keys[None, :]]`, where
`batch` and `keys` are ranges over all of a dim. As an index, such a range must be there whole and so
must the dim; as a view, every dim can be split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

_ATEN = torch.ops.aten
_RANGES = (_ATEN.arange.default, _ATEN.arange.start, _ATEN.arange.start_step)
_RESHAPES = (_ATEN.view.default, _ATEN.reshape.default, _ATEN.unsqueeze.default, _ATEN.squeeze.dim)
_SHIFTS = (_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.add.Scalar, _ATEN.sub.Scalar)
_SAME = (_ATEN.detach.default, _ATEN.alias.default, _ATEN.clone.default, _ATEN.contiguous.default)


@dataclass(frozen=True)
class Taken:
    """What an indexing gives: the operand's dims in this order, in this shape."""

    order: list[int]
    shape: list[int]


def view_of_indexing(node: fx.Node) -> Taken | None:
    """The view that an ``index.Tensor`` is, if its indices are ranges over all of the first dims."""
    operand, indices = node.args
    shape = operand.meta["val"].shape  # type: ignore[union-attr]
    result = node.meta["val"].shape
    if not all(type(size) is int for size in (*shape, *result)):
        return None
    common = len(result) - (len(shape) - len(indices))  # type: ignore[arg-type]
    places = []
    for dim, index in enumerate(indices):  # type: ignore[arg-type, union-attr]
        place = _range_along(index) if isinstance(index, fx.Node) else None
        if place is None or index.meta["val"].shape[place] != shape[dim]:
            return None
        places.append(common - index.meta["val"].dim() + place)
    wide = [place for dim, place in enumerate(places) if shape[dim] > 1]
    if len(set(wide)) < len(wide):
        return None  # two ranges along one dim: a diagonal
    order = sorted(range(len(places)), key=lambda dim: places[dim])
    return Taken([*order, *range(len(places), len(shape))], list(result))


def _range_along(node: fx.Node) -> int | None:
    """The dim along which a tensor counts 0, 1, 2.., all others having one element."""
    if node.target in _RANGES:
        numbers: tuple[Any, ...] = node.args if len(node.args) > 1 else (0, *node.args)
        counts = numbers[0] == 0 and numbers[2:] in ((), (1,)) and _is_integer(node)
        return 0 if counts else None
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    if node.target in _SAME or (node.target in _SHIFTS and node.args[1] == 0):
        return _range_along(source) if _is_integer(node) else None
    if node.target in _RESHAPES and _range_along(source) is not None:
        shape = node.meta["val"].shape
        long = [dim for dim, size in enumerate(shape) if size != 1]
        if len(long) < 2:
            return next(iter(long), len(shape) - 1 if shape else None)
    return None


def _is_integer(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)
