"""Attention masks that say no more than `is_causal` does, or nothing.

Models often build a mask out of positions where attention could be told that it is causal; while a
model is traced they cannot look whether that would do. A mask that depends on no input and no parameter
is computed here. Most of its dims are copies of one row, and are computed once.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
# Elements that are computed at most, and that are compared to find copies.
_LARGEST, _COMPARED = 2**28, 2**20
# Pointwise too, though PyTorch does not mark them so.
_LOGICAL = ("aten.__and__.", "aten.__or__.", "aten.__xor__.")

Values = dict[fx.Node, "Tensor | None"]


def simplify_masks(program: ExportedProgram) -> None:
    values: Values = {}
    for node in program.graph.nodes:
        if node.target is _ATTENTION:
            _simplify(node, values)


def _simplify(node: fx.Node, values: Values) -> None:
    names = [argument.name for argument in _ATTENTION._schema.arguments]
    named = dict(zip(names, node.args, strict=False)) | node.kwargs
    mask = named.pop("attn_mask", None)
    if not isinstance(mask, fx.Node) or mask.meta["val"].dtype != torch.bool:
        return
    value = _value(mask, values)
    if value is None:
        return
    rows = _once(value)
    if rows.all():
        causal = False
    elif torch.equal(rows, torch.ones_like(rows).tril()):
        causal = True
    else:
        return
    node.args = tuple(named.pop(name) for name in ("query", "key", "value"))
    node.kwargs = {**named, "is_causal": causal}


def _value(node: fx.Node, values: Values) -> Tensor | None:
    if node not in values:
        values[node] = _computed(node, values)
    return values[node]


def _computed(node: fx.Node, values: Values) -> Tensor | None:
    """The value of what depends on constants of the code alone, if it is a tensor of a fair size."""
    example = node.meta.get("val")
    tags = getattr(node.target, "tags", ())
    if node.op != "call_function" or not isinstance(example, Tensor):
        return None
    if torch.Tag.nondeterministic_seeded in tags:
        return None
    known = {source: _value(source, values) for source in node.all_input_nodes}
    if any(value is None for value in known.values()):
        return None
    args, kwargs = pytree.tree_map_only(fx.Node, known.__getitem__, (node.args, dict(node.kwargs)))
    if "device" in kwargs:
        kwargs["device"] = "cpu"
    pointwise = known and (torch.Tag.pointwise in tags or str(node.target).startswith(_LOGICAL))
    shape = example.shape
    if pointwise:
        args = _narrowed(args, shape)
        shape = torch.broadcast_shapes(*(x.shape for x in pytree.tree_leaves(args) if isinstance(x, Tensor)))
    if prod(shape) > _LARGEST and not _is_view(node.target, args):
        return None
    with torch.no_grad():
        result: Any = node.target(*args, **kwargs)  # type: ignore[operator]
    return result.expand(example.shape) if pointwise else _with_copies(result)


def _is_view(target: Any, args: Any) -> bool:
    """Whether the result needs no memory of its own."""
    if target is torch.ops.aten.reshape.default:
        try:
            args[0].view(args[1])
        except RuntimeError:
            return False
        return True
    return any(value.alias_info is not None for value in target._schema.returns)


def _narrowed(args: Any, shape: torch.Size) -> Any:
    """The operands of a pointwise operator without the dims along which all of them are copies."""
    operands = [x.expand(shape) for x in pytree.tree_leaves(args) if isinstance(x, Tensor)]
    copied = [dim for dim in range(len(shape)) if all(_is_copied(x, dim) for x in operands)]

    def narrow(x: Tensor) -> Tensor:
        x = x.expand(shape)
        for dim in copied:
            x = x.narrow(dim, 0, min(1, x.shape[dim]))
        return x

    return pytree.tree_map_only(Tensor, narrow, args)


def _is_copied(x: Tensor, dim: int) -> bool:
    return x.stride(dim) == 0 or x.shape[dim] <= 1


def _with_copies(x: Tensor) -> Tensor:
    """The same tensor; dims whose entries are all equal are copies of the first."""
    shape = x.shape
    for dim in range(x.dim()) if 0 < x.numel() <= _COMPARED else ():
        first = x.narrow(dim, 0, 1)
        if not _is_copied(x, dim) and torch.equal(x, first.expand(x.shape)):
            x = first.expand(shape)
    return x


def _once(mask: Tensor) -> Tensor:
    """Without leading dims that are copies."""
    for dim in range(mask.dim() - 2):
        if _is_copied(mask, dim):
            mask = mask.narrow(dim, 0, min(1, mask.shape[dim]))
    return mask
