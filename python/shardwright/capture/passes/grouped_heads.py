"""Keys and values that are repeated for each head of a group: attention takes them as they are.

Models repeat them since not every kernel knows groups. In bfloat16 each fused kernel of a GPU does, where
there is no mask; in float64 there is none. In other types PyTorch may have one for equal heads only: without
it all scores are in memory. So these stay as the model has them, and so does what has a mask or dropout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

_ATEN = torch.ops.aten
_ATTENTION = _ATEN.scaled_dot_product_attention.default
_NAMES = tuple(argument.name for argument in _ATTENTION._schema.arguments)
_DTYPES = (torch.bfloat16, torch.float64)
# Wider heads have no fused kernel with groups on every GPU.
_WIDEST = 192


def group_heads(program: ExportedProgram) -> None:
    if "enable_gqa" not in _NAMES:
        return
    for node in program.graph.nodes:
        if node.target is _ATTENTION:
            _group(node)


def _group(node: fx.Node) -> None:
    given: dict[str, Any] = dict(zip(_NAMES, node.args, strict=False)) | node.kwargs
    query, key, value = (given.pop(name) for name in ("query", "key", "value"))
    keys, values = _before(key, node), _before(value, node)
    if keys is None or values is None or query in (key, value) or not _is_fused(given, query, keys, values):
        return
    # As PyTorch writes it: neither a mask nor dropout, then whether it is causal.
    causal = (None, 0.0, True) if given.get("is_causal") else ()
    scale = {"scale": given["scale"]} if given.get("scale") is not None else {}
    node.args, node.kwargs = (query, keys, values, *causal), {**scale, "enable_gqa": True}


def _is_fused(given: dict[str, Any], query: fx.Node, key: fx.Node, value: fx.Node) -> bool:
    """Whether a kernel with groups is as good, and the groups are those of the queries."""
    q, k, v = (node.meta["val"] for node in (query, key, value))
    plain = given.get("attn_mask") is None and not given.get("dropout_p") and not given.get("enable_gqa")
    square = q.shape[-2] == k.shape[-2] or not given.get("is_causal")
    widths = {x.shape[-1] for x in (q, k, v)}
    same = k.shape[:-1] == v.shape[:-1] and q.dim() == 4 and len(widths) == 1 and max(widths) <= _WIDEST
    return plain and square and same and q.dtype in _DTYPES


def _before(node: fx.Node, reader: fx.Node) -> fx.Node | None:
    """What is repeated for each head of a group, if that is what a node is, and nobody else reads it."""
    merged = _source(node, (_ATEN.reshape.default, _ATEN.view.default), reader)
    copied = _source(merged, (_ATEN.clone.default,), node)
    expanded, above = (merged, node) if copied is None else (copied, merged)
    single = _source(expanded, (_ATEN.expand.default,), above)
    source = _source(single, (_ATEN.unsqueeze.default,), expanded)
    if source is None or single is None or expanded is None:
        return None
    shape, repeated, whole = (list(one.meta["val"].shape) for one in (source, expanded, node))
    if len(shape) != 4 or single.args[1] not in (2, -3) or len(repeated) != 5:
        return None
    batch, heads, *rest = shape
    groups = repeated[2]
    fits = repeated == [batch, heads, groups, *rest] and whole == [batch, heads * groups, *rest]
    return source if fits and groups > 1 else None


def _source(node: fx.Node | None, targets: tuple[Any, ...], reader: fx.Node | None) -> fx.Node | None:
    """What a node is made of, if it is one of these operators and has one reader."""
    if not isinstance(node, fx.Node) or node.target not in targets or set(node.users) != {reader}:
        return None
    source = node.args[0]
    return source if isinstance(source, fx.Node) else None
