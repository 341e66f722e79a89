"""Two products with the matrices of a token's experts, what stands between them, and the weighted sum of what
they give become one operator: what is between never leaves the device that has the expert."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from ..fx_nodes import insert, is_no_grad, replace
from .simplify import sweep

_ATEN = torch.ops.aten
_LINEAR = torch.ops.shardwright.expert_linear.default
_HALVES = (_ATEN.split.Tensor, _ATEN.chunk.default)
_RESHAPES = (_ATEN.reshape.default, _ATEN.view.default)


def fuse_mixtures(program: ExportedProgram) -> None:
    sweep(program.graph)  # who reads a result counts
    for node in list(program.graph.nodes):
        mixture = _mixture(node) if node.target is _LINEAR else None
        if mixture is not None:
            arguments = (mixture.x, mixture.chosen, mixture.weights, mixture.up, mixture.down)
            says = (mixture.activation, mixture.gated, mixture.transposed, False)
            target = torch.ops.shardwright.experts.default
            fused = insert(mixture.sum, target, (*arguments, *says), {}, mixture.sum.meta["val"])
            replace(program, mixture.sum, fused)


@dataclass(frozen=True)
class _Mixture:
    x: Any
    chosen: Any
    weights: Any
    up: Any
    down: Any
    activation: str
    gated: bool
    transposed: bool
    sum: Any


def _mixture(second: Any) -> _Mixture | None:
    """The mixture whose second product this is."""
    inner, down, experts, transposed = second.args
    between = _between(inner)
    summed = _summed(second)
    if between is None or summed is None:
        return None
    (first, activation, gated), (weights, total) = between, summed
    rows, up, same, turned = first.args
    x, chosen = _repeated(rows), _flat(experts)
    if same is not experts or turned != transposed or x is None or chosen is None:
        return None
    values = [_value(node) for node in (x, chosen, weights)]
    if any(value is None or value.dim() != 2 for value in values):
        return None
    slots = rows.args[1]
    shapes = [list(value.shape) for value in values if value is not None]
    tokens = shapes[0][0]
    fits = shapes[1] == shapes[2] == [tokens, slots] and total.meta["val"].shape[0] == tokens
    dtype = torch.promote_types(x.meta["val"].dtype, weights.meta["val"].dtype)
    alike = len(set(_marks(total, {x, chosen, weights, up, down}))) == 1
    if not fits or total.meta["val"].dtype != dtype or not alike:
        return None
    return _Mixture(x, chosen, weights, up, down, activation, gated, bool(transposed), total)


def _marks(node: Any, ends: set[Any]) -> Iterator[bool]:
    """Of all floats between the operands and a result whether they pass no gradient on."""
    if node not in ends:
        value = _value(node)
        if value is not None and value.is_floating_point():
            yield is_no_grad(node)
        for source in node.all_input_nodes:
            yield from _marks(source, ends)


def _between(inner: Any) -> tuple[Any, str, bool] | None:
    """The first product, and what is made of it: an activation, of the first half and times the second."""
    if not _is(inner, _ATEN.mul.Tensor):
        name = _activation(inner)
        return None if name is None or not _is(inner.args[0], _LINEAR) else (inner.args[0], name, False)
    activated, value = inner.args
    if _activation(activated) is None:
        activated, value = value, activated
    name = _activation(activated)
    if name is None:
        return None
    both = _half(activated.args[0], 0)
    if both is None or both is not _half(value, 1) or len(both.users) != 2:
        return None
    made = both.args[0]
    wide = made.meta["val"].shape[-1]
    half = wide // 2 if both.target is _ATEN.split.Tensor else 2
    fits = wide % 2 == 0 and list(both.args[1:]) in ([half, 1], [half, -1]) and not both.kwargs
    return (made, name, True) if fits and _is(made, _LINEAR) else None


def _activation(node: Any) -> str | None:
    if _is(node, _ATEN.silu.default):
        return "silu"
    if _is(node, _ATEN.relu.default):
        return "relu"
    if _is(node, _ATEN.gelu.default):
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(node.kwargs.get("approximate", "none"))
    return None


def _half(node: Any, at: int) -> Any:
    if _is(node, operator.getitem) and node.args[1] == at and node.args[0].target in _HALVES:
        return node.args[0]
    return None


def _summed(second: Any) -> tuple[Any, Any] | None:
    """What each row is weighted by, and the sum of the rows of each token."""
    product = _only_user(second, _ATEN.mul.Tensor)
    grouped = _only_user(product, *_RESHAPES)
    total = _only_user(grouped, _ATEN.sum.dim_IntList)
    if product is None or grouped is None or total is None or total.kwargs:
        return None
    column = product.args[1] if product.args[0] is second else product.args[0]
    weights = _flat(column.args[0]) if _is(column, _ATEN.unsqueeze.default) else None
    fits = list(total.args[1:]) in ([[1]], [[1], False]) and grouped.meta["val"].dim() == 3
    return None if weights is None or not fits or column.args[1] not in (1, -1) else (weights, total)


def _repeated(rows: Any) -> Any:
    if not isinstance(rows, fx.Node) or rows.target is not _ATEN.repeat_interleave.self_int:
        return None
    return rows.args[0] if list(rows.args[2:]) in ([0], [-2]) and not rows.kwargs else None


def _flat(node: Any) -> Any:
    """What a list was before it was one."""
    is_list = isinstance(node, fx.Node) and node.target in _RESHAPES and node.meta["val"].dim() == 1
    return node.args[0] if is_list else None


def _only_user(node: Any, *targets: Any) -> Any:
    users = list(node.users) if node is not None else []
    return users[0] if len(users) == 1 and users[0].target in targets else None


def _is(node: Any, target: Any) -> bool:
    """Whether it is such an operator, whose result one other reads, or two halves."""
    return isinstance(node, fx.Node) and node.target is target and len(node.users) == 1


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None
