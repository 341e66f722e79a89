"""What operators are on every device and in parts: with dense gradients, and of the types that they give."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from ..fx_nodes import is_getitem

_ATEN = torch.ops.aten
_SPARSE_AT = {_ATEN.embedding.default: 4, _ATEN._embedding_bag.default: 5}
_BATCH_NORM = _ATEN._native_batch_norm_legit_functional.default


def make_canonical(program: ExportedProgram) -> None:
    for node in list(program.graph.nodes):
        if node.target in _SPARSE_AT:
            _make_dense(node, _SPARSE_AT[node.target])
        elif node.target is _BATCH_NORM:
            _type_statistics(node)


def _make_dense(node: fx.Node, at: int) -> None:
    """Parts of a gradient are added and moved, which sparse ones cannot be: it is the same, dense."""
    node.args = tuple(False if place == at else value for place, value in enumerate(node.args))
    if "sparse" in node.kwargs:
        node.kwargs = {**node.kwargs, "sparse": False}


def _type_statistics(node: fx.Node) -> None:
    """Running statistics keep their type; PyTorch's shape functions always say float32."""
    values = list(node.meta["val"])
    for place, operand in ((3, node.args[3]), (4, node.args[4])):
        values[place] = values[place].to(_value(operand).dtype)
    node.meta["val"] = tuple(values)
    for user in node.users:
        if is_getitem(user):
            made: Any = user.args[1]
            user.meta["val"] = values[made]


def _value(node: Any) -> Tensor:
    value: Tensor = node.meta["val"]
    return value
