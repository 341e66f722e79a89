"""Values that depend on how a tensor lies in memory: `as_strided` becomes indexing by the places that it has
in the model, so that it does not matter how tensors and their parts lie."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from ...errors import CaptureError
from .. import lines

_ATEN = torch.ops.aten


def index_strided(program: ExportedProgram) -> None:
    """Before decomposing, while tensors lie as in the model."""
    for node in list(program.graph.nodes):
        if node.target is _ATEN.as_strided.default:
            _index(node)
        elif "as_strided" in str(node.target):
            raise _refusal(node, "it writes by positions in memory")


def _index(node: fx.Node) -> None:
    source: Any = node.args[0]
    value: Tensor = source.meta["val"]
    given: Any = node.args
    size, stride = list(given[1]), list(given[2])
    named: Any = node.kwargs.get("storage_offset")
    offset: int = (given[3] if len(given) > 3 else named) or 0
    order = _order(value)
    if order is None or _is_changed(node) or _is_changed(source):
        raise _refusal(node, "other tensors share the memory that it reads")
    reach = 1 + offset + sum((s - 1) * t for s, t in zip(size, stride, strict=True))
    if 0 in size or reach > value.numel():
        raise _refusal(node, "it reads beyond the tensor")
    flat = _call(node, _ATEN.permute.default, (source, order), value.permute(order))
    flat = _call(node, _ATEN.reshape.default, (flat, [value.numel()]), value.new_empty(value.numel()))
    places = _places(node, size, stride, offset)
    node.target, node.args, node.kwargs = _ATEN.index.Tensor, (flat, [places]), {}


def _places(node: fx.Node, size: list[int], stride: list[int], offset: int) -> fx.Node:
    """For each element of the result where it lies: a sum over the dims."""
    mode = node.meta["val"].fake_mode
    total: fx.Node | None = None
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * dim + [count] + [1] * (len(size) - dim - 1)
        with mode:
            value = torch.arange(count)
        steps = _call(node, _ATEN.arange.default, (count,), value)
        steps = _call(node, _ATEN.mul.Tensor, (steps, step), value)
        steps = _call(node, _ATEN.add.Tensor, (steps, offset if dim == 0 else 0), value)
        steps = _call(node, _ATEN.reshape.default, (steps, shape), value.reshape(shape))
        if total is not None:
            sums = total.meta["val"] + steps.meta["val"]
            steps = _call(node, _ATEN.add.Tensor, (total, steps), sums)
        total = steps
    if total is None:
        raise _refusal(node, "it reads a single position in memory")
    return total


def _order(value: Tensor) -> list[int] | None:
    """The dims as they lie in memory, outermost first, if the tensor fills its memory without a gap."""
    order = sorted(range(value.dim()), key=lambda dim: (-value.stride()[dim], dim))
    dense = value.permute(order).is_contiguous() and value.storage_offset() == 0
    return order if dense and value.untyped_storage().nbytes() == value.nbytes else None


def _is_changed(node: fx.Node) -> bool:
    """Whether an operator writes in place what a node gives."""
    return any(
        argument.alias_info is not None and argument.alias_info.is_write and given is node
        for user in node.users
        for argument, given in zip(_arguments(user), user.args, strict=False)
    )


def _arguments(node: fx.Node) -> list[Any]:
    return list(getattr(getattr(node.target, "_schema", None), "arguments", ()))


def _call(before: fx.Node, target: Any, args: Any, value: Tensor) -> fx.Node:
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args)
    node.meta = {**before.meta, "val": value}
    return node


def _refusal(node: fx.Node, why: str) -> CaptureError:
    return CaptureError(
        "SW0135",
        f"`{node.target}` reads a tensor by its positions in memory",
        place=lines.with_source(node.stack_trace),
        why=f"{why}; shards have other positions in memory",
        fix="take the elements by indexing, `unfold`, `transpose` or `reshape`",
    )
