"""What nothing reads and still does something: norms that update their running statistics, which export
does not know, and where `vmap` begins and ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_ATEN = torch.ops.aten
_VMAP = "torch._functorch.predispatch"
_NORMS = {_ATEN.batch_norm.default: "training", _ATEN.instance_norm.default: "use_input_stats"}


def drop_unread(graph: fx.Graph) -> None:
    """Drops what nothing reads, but not what updates a buffer."""
    graph.eliminate_dead_code(lambda node: node.is_impure() or _updates(node) or _is_of_vmap(node))
    for node in graph.nodes:
        if node.target is _ATEN.batch_norm.default and not node.users:
            _say_what_is_updated(node)


def _is_of_vmap(node: fx.Node) -> bool:
    """Until operators are made functional, which runs these."""
    return getattr(node.target, "__module__", None) == _VMAP


def _updates(node: fx.Node) -> bool:
    if node.target not in _NORMS:
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    named: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
    return bool(named[_NORMS[node.target]]) and named["running_mean"] is not None


def _say_what_is_updated(node: fx.Node) -> None:
    """The operator of that meaning whose schema has the buffers as changed."""
    value = node.meta["val"]
    statistic = value.new_empty(value.shape[1])
    node.target, node.args = _ATEN._native_batch_norm_legit.default, node.args[:8]
    node.meta["val"] = (value, statistic, statistic)
