"""Random tensors that PyTorch fills as they lie in memory, and not in the order of their dims."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from .draws import draws

# In the meta of a node: the dims of what is drawn, outermost first.
ORDER = "shardwright_order"
_ATEN = torch.ops.aten
_AS_IT_LIES = {
    _ATEN.dropout.default,
    _ATEN.native_dropout.default,
    _ATEN.rand_like.default,
    _ATEN.randn_like.default,
    _ATEN.randint_like.default,
    _ATEN.exponential.default,
}


def draw_on_fresh(program: ExportedProgram) -> None:
    """In the program as written: what is drawn in place is drawn on a fresh tensor that lies like it, and
    what is drawn out of place on no such one.

    So do operators that PyTorch takes apart, and afterwards nothing else tells the two from each other.
    """
    for node in list(program.graph.nodes):
        if node.target is _ATEN.bernoulli_.float:
            _draw_then_copy(node)
        elif node.target is _ATEN.bernoulli.p and _is_fresh(node.args[0]):
            node.args[0].target = _ATEN.zeros_like.default


def note_order(program: ExportedProgram) -> None:
    """Where PyTorch does not fill what is drawn in the order of its dims.

    Called while tensors lie as in the model.
    """
    for node in program.graph.nodes:
        if draws(node.target, node.args, node.kwargs) and _as_it_lies(node):
            given: Any = node.args[0]
            drawn = torch.empty_like(given.meta["val"])
            dims = [dim for dim in range(drawn.dim()) if drawn.shape[dim] > 1]
            order = sorted(dims, key=lambda dim: -drawn.stride()[dim])
            if order != dims:
                node.meta[ORDER] = [dim for dim in range(drawn.dim()) if dim not in dims] + order


def _as_it_lies(node: fx.Node) -> bool:
    return node.target in _AS_IT_LIES or (node.target is _ATEN.bernoulli.p and _is_fresh(node.args[0]))


def _is_fresh(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is _ATEN.empty_like.default


def _draw_then_copy(node: fx.Node) -> None:
    changed: Any = node.args[0]
    with node.graph.inserting_before(node):
        fresh = node.graph.call_function(_ATEN.empty_like.default, (changed,))
        drawn = node.graph.call_function(_ATEN.bernoulli.p, (fresh, *node.args[1:]))
    value = changed.meta["val"]
    with value.fake_mode, torch.no_grad():
        fresh.meta = {**node.meta, "val": torch.empty_like(value)}
    drawn.meta = {**node.meta, "val": fresh.meta["val"]}
    node.target, node.args, node.kwargs = _ATEN.copy_.default, (changed, drawn), {}
