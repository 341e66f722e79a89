"""Removes what a functional graph without devices and layouts does not need.

Releases of PyTorch differ in these nodes; without them ordinary models have one text.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from ..fx_nodes import insert, is_no_grad, replace
from ..random.draws import draws
from .operator_aliases import rename
from .positions import view_of_indexing

_ATEN = torch.ops.aten
_ASSERTIONS = ("aten._assert_", "aten.sym_constrain_range", "aten._functional_assert_")
_COPIES = (_ATEN.clone.default, _ATEN.contiguous.default, _ATEN.lift_fresh_copy.default)
_ALIASES = (_ATEN.alias.default,)
_CONJUGATE = _ATEN._conj_physical.default
_NEUTRAL = {_ATEN.mul.Tensor: 1, _ATEN.add.Tensor: 0}
# Whether a view is possible depends on the layout, which differs between devices and shards.
_RESHAPES = (_ATEN.view.default, _ATEN._unsafe_view.default)
_READ_LAYOUT = (_ATEN.view.dtype,)
# A part that is written into what is around it, which keeps a gradient of its own.
_AROUND = ("aten.slice_scatter", "aten.select_scatter", "aten.diagonal_scatter", "aten.as_strided_scatter")


def simplify(program: ExportedProgram, trained: Container[str]) -> None:
    """Drops assertions, what nobody reads, and copies, views, indexing and arithmetic that change nothing.

    ``trained`` are the parameters and the placeholders that get a gradient.
    """
    graph = program.graph
    for node in graph.nodes:
        rename(node)
        if str(node.target).startswith(_ASSERTIONS):
            node.meta["shardwright_dead"] = True
        elif node.target is _ATEN.broadcast_tensors.default:
            _unbroadcast(program, node)
        elif node.target is _ATEN.copy.default:
            _uncopy(program, node, trained)
        elif node.target is _ATEN.index.Tensor:
            _unindex(program, node)
        elif _is_identity(node):
            replace(program, node, node.args[0])
        elif _is_undone(node):
            replace(program, node, node.args[0].args[0])  # type: ignore[union-attr]
    if not any(node.target in _READ_LAYOUT for node in graph.nodes):
        _forget_layout(program)
    for node in graph.find_nodes(op="call_function", target=_ATEN.view_as_complex.default):
        _lay_out(node)
    sweep(graph)


def _forget_layout(program: ExportedProgram) -> None:
    for node in list(program.graph.nodes):
        if node.target in _RESHAPES:
            node.target = _ATEN.reshape.default
        is_copy = node.target in _COPIES + _ALIASES and not is_no_grad(node) and not _is_copy_of_held(node)
        if is_copy or (node.target is _ATEN.reshape.default and _is_alike(node)):
            replace(program, node, node.args[0])


def _lay_out(pairs: fx.Node) -> None:
    """Pairs are seen as complex numbers where they lie beside each other, which parts may not do."""
    source: Any = pairs.args[0]
    if source.target is not _ATEN.contiguous.default:
        value = source.meta["val"].contiguous()
        pairs.args = (insert(pairs, _ATEN.contiguous.default, (source,), {}, value),)


def _is_copy_of_held(node: fx.Node) -> bool:
    """A result that is a copy of a parameter is not the parameter."""
    return node.target is _ATEN.clone.default and _is_held(node.args[0]) and _leaves(node)


def _is_identity(node: fx.Node) -> bool:
    """``x * 1`` of numbers and ``x + 0`` of integers; of floats that would make 0 of -0."""
    if node.target not in _NEUTRAL or len(node.args) != 2 or node.kwargs:
        return False
    by, dtype = node.args[1], node.meta["val"].dtype
    neutral = not isinstance(by, fx.Node) and by == _NEUTRAL[node.target] and not isinstance(by, bool)
    exact = not dtype.is_complex and (node.target is _ATEN.mul.Tensor or not dtype.is_floating_point)
    return bool(neutral and exact) and _is_alike(node)


def _is_undone(node: fx.Node) -> bool:
    """The conjugate of a conjugate: PyTorch takes one back to look at what is below it."""
    inner: Any = node.args[0] if node.args else None
    if node.target is not _CONJUGATE or getattr(inner, "target", None) is not _CONJUGATE:
        return False
    return not (_leaves(node) or is_no_grad(node) or is_no_grad(inner))


def _is_alike(node: fx.Node) -> bool:
    """Whether what it gives looks as what it reads, has a gradient where that has one, and stays inside."""
    source: Any = node.args[0]
    if not isinstance(source, fx.Node) or _is_held(source) or _leaves(node):
        return False
    before, after = source.meta["val"], node.meta["val"]
    same = before.dtype == after.dtype and before.shape == after.shape
    return same and (not is_no_grad(node) or is_no_grad(source))


def _is_held(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "placeholder"


def _leaves(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _unbroadcast(program: ExportedProgram, node: fx.Node) -> None:
    """``broadcast_tensors`` of equal shapes, which the losses of torch.nn.functional call."""
    tensors: Any = node.args[0]
    if is_no_grad(node) or len({tuple(t.meta["val"].shape) for t in tensors}) > 1:
        return
    for user in list(node.users):
        replace(program, user, tensors[user.args[1]])


def _uncopy(program: ExportedProgram, node: fx.Node, trained: Container[str]) -> None:
    """The functional ``copy_`` has no derivative: it is a cast and an expansion of its source. What it
    overwrites gets a gradient all the same, of zeros."""
    source: Any = node.args[1]
    value, wanted = source.meta["val"], node.meta["val"]
    if value.dtype != wanted.dtype:
        value = value.to(wanted.dtype)
        source = insert(node, _ATEN._to_copy.default, (source,), {"dtype": wanted.dtype}, value)
    if value.shape != wanted.shape:
        arguments = (source, list(wanted.shape))
        source = insert(node, _ATEN.expand.default, arguments, {}, value.expand(wanted.shape))
    if _gets_zeros(program, node, trained):
        always = insert(
            node, _ATEN.full.default, ([], True), {"dtype": torch.bool}, wanted.new_ones(()).bool()
        )
        source = insert(node, _ATEN.where.self, (always, source, node.args[0]), {}, wanted)
    if _is_held(source) and _leaves(node):
        source = insert(node, _ATEN.clone.default, (source,), {}, wanted)
    replace(program, node, source)


def _gets_zeros(program: ExportedProgram, copy: fx.Node, trained: Container[str]) -> bool:
    """Whether what is overwritten leads back to something trained, which what is around it does not reach."""
    if is_no_grad(copy) or all(str(user.target).startswith(_AROUND) for user in copy.users):
        return False
    names = {**program.graph_signature.inputs_to_parameters}
    waiting, seen = [copy.args[0]], set()
    while waiting:
        node: Any = waiting.pop()
        if node in seen or not isinstance(node, fx.Node):
            continue
        seen.add(node)
        if node.op == "placeholder" and names.get(node.name, node.name) in trained:
            return True
        if not is_no_grad(node) and node.target is not _ATEN.detach.default:
            waiting += node.all_input_nodes
    return False


def _unindex(program: ExportedProgram, node: fx.Node) -> None:
    taken = view_of_indexing(node)
    if taken is None:
        return
    source: Any = node.args[0]
    value = source.meta["val"]
    if taken.order != sorted(taken.order):
        value = value.permute(taken.order)
        source = insert(node, _ATEN.permute.default, (source, taken.order), {}, value)
    arguments = (source, taken.shape)
    source = insert(node, _ATEN.reshape.default, arguments, {}, value.reshape(taken.shape))
    replace(program, node, source)


def sweep(graph: fx.Graph) -> None:
    """What nobody reads, but for what draws: the single device draws on from there."""
    for node in reversed(list(graph.nodes)):
        unread = not node.users and not draws(node.target, node.args, node.kwargs)
        is_dead = "shardwright_dead" in node.meta or unread
        if is_dead and node.op in ("call_function", "get_attr"):
            graph.erase_node(node)
