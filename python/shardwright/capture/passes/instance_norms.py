"""Running statistics of an instance norm, which its operator updates without saying so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from ..fx_nodes import mark_no_grad

_ATEN = torch.ops.aten
_NORM = _ATEN.instance_norm.default


def write_out_statistics(program: ExportedProgram) -> None:
    """As operators of their own, before decomposing makes them functional."""
    for node in list(program.graph.nodes):
        if node.target is _NORM:
            names = [argument.name for argument in _NORM._schema.arguments]
            named = dict(zip(names, node.args, strict=False)) | node.kwargs
            if named["use_input_stats"] and named["running_mean"] is not None:
                _write_out(node, named)


def _write_out(node: fx.Node, named: dict[str, Any]) -> None:
    source, momentum = named["input"], named["momentum"]
    node.args = tuple(None if name.startswith("running_") else value for name, value in named.items())
    node.kwargs = {}
    add = _Adder(node)
    kept: fx.Node = named["running_mean"]
    if source.meta["val"].dtype != kept.meta["val"].dtype:
        source = add(_ATEN._to_copy.default, source, dtype=kept.meta["val"].dtype)
    places = list(range(2, source.meta["val"].dim()))
    mean = add(_ATEN.mean.dim, source, places)
    variance = add(_ATEN.var.correction, source, places, correction=1)
    for running, statistic in ((kept, mean), (named["running_var"], variance)):
        new = add(_ATEN.mul.Tensor, add(_ATEN.mean.dim, statistic, [0]), momentum)
        old = add(_ATEN.mul.Tensor, running, 1 - momentum)
        add(_ATEN.copy_.default, running, add(_ATEN.add.Tensor, old, new))


class _Adder:
    """Adds operators after a node, one after the other, in its place and without gradients."""

    def __init__(self, node: fx.Node):
        self._node, self._last = node, node

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self._node.graph.inserting_after(self._last):
            added = self._node.graph.call_function(target, args, kwargs)
        added.meta = {**self._node.meta, "val": self._value(target, args, kwargs)}
        mark_no_grad(added, True)
        self._last = added
        return added

    def _value(self, target: Any, args: Any, kwargs: Any) -> Tensor:
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        value: Tensor
        if target is _ATEN.copy_.default:
            return values[0]  # type: ignore[no-any-return]
        with self._node.meta["val"].fake_mode, torch.no_grad():
            value = target(*values, **kwargs)
        return value
