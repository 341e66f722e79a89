"""Random numbers that a model draws and does not read. The single device draws on from there, so they stay.

Making operators functional drops what nobody reads. All other draws stay, in their order, which says where
those that are lost were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from ..fx_nodes import insert, mark_no_grad
from .draws import draws

_ATEN = torch.ops.aten
# How many numbers of which kind, however they are drawn.
_UNIFORM, _NORMAL = _ATEN.rand.default, _ATEN.randn.default
_KINDS = {"uniform_": _UNIFORM, "rand": _UNIFORM, "rand_like": _UNIFORM} | dict.fromkeys(
    ("normal_", "randn", "randn_like"), _NORMAL
)
# What makes memory for what is drawn.
_FRESH = ("empty", "empty_like", "new_empty", "empty_permuted")


def drawn(program: ExportedProgram) -> list[fx.Node]:
    """All that draw, in order. Take it before operators are made functional."""
    return [node for node in program.graph.nodes if draws(node.target, node.args, node.kwargs)]


def draw_what_is_lost(program: ExportedProgram, before: Sequence[tuple[fx.Node, bool]]) -> None:
    """`before` are those that drew in the program as written, and whether nobody reads what they did."""
    now = drawn(program)
    lost = sum(unread for _, unread in before)
    if not lost or len(now) != len(before) - lost:
        return
    following = iter([*now, program.graph.output_node()])
    at = next(following)
    for node, unread in before:
        if unread:
            _draw(node, at)
        else:
            at = next(following)


def is_unread(node: fx.Node) -> bool:
    """Whether nobody reads what it draws, nor the fresh tensor that it fills."""
    if node.users:
        return False
    filled: Any = node.args[0] if _name(node).endswith("_") else None
    return filled is None or (_name(filled) in _FRESH and list(filled.users) == [node])


def _draw(node: fx.Node, before: fx.Node) -> None:
    target = _KINDS.get(_name(node))
    value = node.meta["val"]
    if target is not None:
        made = insert(before, target, (list(value.shape),), {"dtype": value.dtype}, value)
        made.meta = {**node.meta}
        mark_no_grad(made, True)


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).partition("::")[2] if schema is not None else ""
