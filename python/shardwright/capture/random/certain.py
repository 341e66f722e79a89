"""What a model asks of random numbers and is certain, whatever they are: `torch.rand([]) < 0.0` is false.

So layers are dropped with a probability that is zero, and the program draws the number all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..fx_nodes import node_of

_ATEN = torch.ops.aten
_DRAWS = (_ATEN.rand.default, _ATEN.rand.generator, _ATEN.uniform_.default)
# What is one of several numbers is in the range of all.
_SAME = (
    *(_ATEN.detach.default, _ATEN.alias.default, _ATEN.clone.default, _ATEN.select.int),
    *(_ATEN.view.default, _ATEN.reshape.default, _ATEN.squeeze.default, _ATEN.unsqueeze.default),
)


def truth_of(value: Any) -> bool | None:
    """That of a comparison of a number between 0 and 1, where it is the same for all these."""
    node = node_of(value)
    asked = _ASKED.get(node.target) if node is not None else None
    if node is None or asked is None or not _is_between_0_and_1(node.args[0]):
        return None
    limit: Any = node.args[1]
    return asked(limit) if type(limit) in (int, float) else None


def _is_between_0_and_1(node: Any) -> bool:
    """Never 1 itself."""
    while isinstance(node, fx.Node) and node.target in _SAME:
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.target not in _DRAWS:
        return False
    is_moved = node.target is _ATEN.uniform_.default and (*node.args[1:],) not in ((), (0,), (0, 1))
    return not is_moved and not set(node.kwargs) & {"from", "to"}


def _is_less(limit: float) -> bool | None:
    return True if limit >= 1 else False if limit <= 0 else None


def _is_at_most(limit: float) -> bool | None:
    return True if limit >= 1 else False if limit < 0 else None


def _not(asked: Callable[[float], bool | None]) -> Callable[[float], bool | None]:
    return lambda limit: None if asked(limit) is None else not asked(limit)


_ASKED: dict[Any, Callable[[float], bool | None]] = {
    _ATEN.lt.Scalar: _is_less,
    _ATEN.le.Scalar: _is_at_most,
    _ATEN.gt.Scalar: _not(_is_at_most),
    _ATEN.ge.Scalar: _not(_is_less),
}
