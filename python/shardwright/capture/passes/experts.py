"""Models with experts multiply each token with the matrices of its own experts.

As it is captured, that copies a matrix for each token; the graph holds it as one operator that does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from ... import library  # noqa: F401  (registers the operator)
from ..fx_nodes import insert, is_no_grad, replace

_ATEN = torch.ops.aten


def fuse_experts(program: ExportedProgram) -> None:
    """A product with looked-up matrices, row by row, becomes one operator without copies of them."""
    for node in program.graph.nodes:
        if node.target is _ATEN.bmm.default:
            matrices = _looked_up(node)
            if matrices is not None:
                _fuse(program, node, *matrices)


def _looked_up(node: fx.Node) -> tuple[fx.Node, fx.Node, bool] | None:
    """The matrices `weight[experts]`, the rows, and whether rows come first: `rows @ matrices`."""
    first, second = node.args
    for matrices, rows, transposed in ((first, second, False), (second, first, True)):
        if _is_lookup(matrices) and _is_row(rows, 1 if transposed else 2):
            assert isinstance(matrices, fx.Node) and isinstance(rows, fx.Node)
            alone = len(matrices.users) == 1
            if alone and is_no_grad(matrices) == is_no_grad(rows) == is_no_grad(node):
                return matrices, rows, transposed
    return None


def _is_lookup(node: Any) -> bool:
    """`weight[experts]` with one matrix for each of a list of numbers."""
    if not isinstance(node, fx.Node) or node.target is not _ATEN.index.Tensor:
        return False
    weight, indices = node.args
    value = _value(weight)
    if value is None or value.dim() != 3 or not isinstance(indices, (list, tuple)) or len(indices) != 1:
        return False
    index = _value(indices[0])
    return index is not None and index.dim() == 1 and index.dtype in (torch.int64, torch.int32)


def _is_row(node: Any, dim: int) -> bool:
    if not isinstance(node, fx.Node) or node.target is not _ATEN.unsqueeze.default:
        return False
    value, at = _value(node.args[0]), node.args[1]
    return value is not None and value.dim() == 2 and at in (dim, dim - 3)


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _fuse(
    program: ExportedProgram, node: fx.Node, matrices: fx.Node, rows: fx.Node, transposed: bool
) -> None:
    weight, indices = matrices.args
    arguments = (rows.args[0], weight, indices[0], transposed)  # type: ignore[index]
    dim = 1 if transposed else 2
    value = node.meta["val"].squeeze(dim)
    target = torch.ops.shardwright.expert_linear.default
    fused = insert(node, target, arguments, {}, value)
    for user in list(node.users):
        if user.target is _ATEN.squeeze.dim and user.args[1] in (dim, dim - 3):
            replace(program, user, fused)
    if node.users:
        kept = insert(node, _ATEN.unsqueeze.default, (fused, dim), {}, node.meta["val"])
        replace(program, node, kept)
