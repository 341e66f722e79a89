"""A functional graph of ATen operators without tracing the graph a second time, where that can be had.

`run_decompositions({})` runs the whole graph again. What it changes in a graph in which nothing is written
in place is little: operators that PyTorch composes of views and casts (`reshape`, `to`, `contiguous`) become
what they are composed of, and tensors lie as they do where whole operators run. Here each kind of operator is
run once, and what repeats, as layers do, is not run again. An operator of which it is not certain what would
become of it makes the whole graph one for `run_decompositions`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ..autocast import no_autocast
from ..dispatch import Call, Record, put_in_place
from ..fx_nodes import is_getitem
from ..torch_errors import quiet, refusal

_ATEN = torch.ops.aten
_KEYS = torch._C.DispatchKey
_COMPOSED = _KEYS.CompositeImplicitAutograd
# One changes statistics, which its schema does not say; one tells how a tensor lies, which is then kept in
# the whole graph; one becomes another.
_NEVER = {_ATEN.native_batch_norm.default, _ATEN.view.dtype, _ATEN.lift_fresh_copy.default}
# Composed of views, copies and casts alone. Others may be composed of operators that are composed themselves.
_WRITTEN_OUT = """
    reshape.default reshape_as.default view_as.default flatten.using_ints unflatten.int ravel.default
    contiguous.default to.dtype to.device to.dtype_layout to.other type_as.default dropout.default
    expand_as.default broadcast_to.default chunk.default split.sizes narrow.default
    swapaxes.default swapdims.default movedim.int movedim.intlist mT.default numpy_T.default
"""


def make_functional(program: ExportedProgram) -> ExportedProgram:
    """Turns in-place operators into functional ones and leaves the others whole."""
    if write_out(program):
        return program
    program.graph_module.recompile()  # what follows runs its code
    try:
        with quiet(), torch.enable_grad(), no_autocast():
            functional: ExportedProgram = program.run_decompositions({})
    except Exception as error:
        raise refusal(error) from error
    # PyTorch takes a buffer `mean` for an operator of that name.
    for node in functional.graph.find_nodes(op="placeholder"):
        node.meta.pop("custom", None)
    _in_order(functional)
    return functional


def _in_order(program: ExportedProgram) -> None:
    """The results in the order in which the model gives them. PyTorch made its containers anew, which
    orders the keys of some (of Transformers' outputs, what was set later), and tells their structure as it
    was."""
    specs, output = program.graph_signature.output_specs, program.graph.output_node()
    users = [at for at, spec in enumerate(specs) if spec.kind is OutputKind.USER_OUTPUT]
    tree = program.call_spec.out_spec
    if tree is None or tree.num_leaves != len(users):
        return
    made = pytree.tree_leaves(pytree.tree_unflatten(list(range(len(users))), tree))
    by_place = dict(zip(made, users, strict=True))
    order = list(range(len(specs)))
    for place, at in enumerate(users):
        order[at] = by_place[place]
    specs[:] = [specs[at] for at in order]
    output.args = (tuple(output.args[0][at] for at in order),)


def write_out(program: ExportedProgram) -> bool:
    """Makes of each operator what `run_decompositions({})` makes of it; `False`, and nothing changed, where
    only that itself can tell."""
    ran_by_node = _found(program.graph)
    if ran_by_node is None:
        return False
    for node, ran in ran_by_node.items():
        if ran.calls is None:
            node.meta["val"] = ran.result
        else:
            read = _tensors_read(node)
            arguments = {id(tensor): read[at] for at, tensor in enumerate(ran.arguments)}
            put_in_place(program, node, ran.calls, arguments, ran.result)
    program.graph.eliminate_dead_code()
    return True


def is_kept(target: Any) -> bool:
    """Whether an operator is in the functional graph as it is: one of ATen that writes nothing, and either is
    not composed of others or, having no views in its schema, stays whole."""
    if not _is_aten(target) or _may_lie(target) or target in _NEVER:
        return False
    if set(target.py_kernels) - {_KEYS.Meta, _COMPOSED}:
        return False
    return not (_is_made_of_others(target) and _has_views(target))


def is_composed(target: Any) -> bool:
    """Whether it becomes what it is composed of."""
    if not _is_aten(target) or str(target).removeprefix("aten.") not in _WRITTEN_OUT.split():
        return False
    # Tracing takes this one before what it is composed of.
    above = target.py_kernels.get(_KEYS.Autograd)
    return _is_made_of_others(target) and above in (None, target.py_kernels.get(_COMPOSED))


def _is_aten(target: Any) -> bool:
    is_operator = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return is_operator and not target._schema.is_mutable


def _is_made_of_others(target: Any) -> bool:
    return bool(target.has_kernel_for_dispatch_key(_COMPOSED))


def _may_lie(target: Any) -> bool:
    """Whether it may write or give a view where its schema says that it does not."""
    return torch.Tag.maybe_aliasing_or_mutating in target.tags


def _has_views(target: Any) -> bool:
    return any(argument.alias_info is not None for argument in target._schema.arguments)


# ---- running each kind of operator once -----------------------------------------------------


@dataclass
class _Ran:
    """What an operator gave for tensors that stand for its arguments, in their order."""

    result: Any
    arguments: list[Tensor] = field(default_factory=list)
    calls: list[Call] | None = None
    """What it is composed of, if it becomes that."""
    said: Hashable = None
    """What matters of its result to those who read it."""


def _found(graph: fx.Graph) -> dict[fx.Node, _Ran] | None:
    """What became of each operator; none if that of one of them is not certain."""
    mode = next((_mode(node) for node in graph.nodes if _mode(node) is not None), None)
    if mode is None:
        return None
    ran: dict[fx.Node, _Ran] = {}
    known: dict[Hashable, _Ran | None] = {}
    with torch.no_grad(), no_autocast(), mode:
        for node in graph.nodes:
            if node.op == "output":
                continue
            now = _source(node) if node.op == "placeholder" else _run(node, ran, known)
            if now is None:
                return None
            ran[node] = now
    return {node: one for node, one in ran.items() if node.op == "call_function"}


def _mode(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "fake_mode", None)


def _source(node: fx.Node) -> _Ran | None:
    value = node.meta.get("val")
    return _Ran(value, said=_said_of(value)) if _is_plain(value) else None


def _run(node: fx.Node, ran: dict[fx.Node, _Ran], known: dict[Hashable, _Ran | None]) -> _Ran | None:
    if node.op != "call_function":
        return None
    key = node.target, _said(node.args, ran), _said(node.kwargs, ran)
    if key not in known:
        known[key] = _look(node, ran)
    return known[key]


def _look(node: fx.Node, ran: dict[fx.Node, _Ran]) -> _Ran | None:
    if is_getitem(node):
        source, at = node.args
        result = ran[source].result[at]  # type: ignore[index]
        return _Ran(result, said=_said_of(result))
    composed = not is_kept(node.target)
    before = node.meta.get("val")
    if (composed and not is_composed(node.target)) or not _is_plain(before):
        return None
    try:
        called = _called(node, ran, composed)
    except Exception:  # tracing again says it better, if it is an error there too
        return None
    if called.calls is not None and not _is_whole(called, called.calls):
        return None
    return called if _is_plain(called.result) and _types(called.result) == _types(before) else None


def _called(node: fx.Node, ran: dict[fx.Node, _Ran], composed: bool) -> _Ran:
    arguments: list[Tensor] = []

    def stand_in(read: fx.Node) -> Any:
        """One for each place, so that a result says which argument it is."""
        value = ran[read].result
        if not isinstance(value, Tensor):
            return value
        arguments.append(value.detach())
        return arguments[-1]

    args, kwargs = map_arg(node.args, stand_in), map_arg(node.kwargs, stand_in)
    target: Any = node.target
    # PyTorch runs operators that stay whole as what they are composed of, too.
    call = target.decompose if _is_made_of_others(target) else target
    with Record() as record:
        result = call(*args, **kwargs)
    return _Ran(result, arguments, record.calls if composed else None, _said_of(result))


def _is_whole(ran: _Ran, calls: list[Call]) -> bool:
    """Whether calls lead from the arguments to the result, and stay as they are."""
    known = {id(tensor) for tensor in ran.arguments}
    for target, args, kwargs, out in calls:
        if not is_kept(target) or _is_made_of_others(target) or not _are_in(known, (args, kwargs)):
            return False
        known.update(map(id, pytree.tree_leaves(out)))
    return _are_in(known, ran.result)


def _are_in(known: set[int], tree: Any) -> bool:
    return all(id(leaf) in known for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


def _tensors_read(node: fx.Node) -> list[fx.Node]:
    """In the order of the arguments, each as often as it is one."""
    read: list[fx.Node] = []

    def note(argument: fx.Node) -> fx.Node:
        if isinstance(argument.meta["val"], Tensor):
            read.append(argument)
        return argument

    map_arg(node.args, note)
    map_arg(node.kwargs, note)
    return read


# ---- what tells kinds of operators apart ------------------------------------------------------


def _said(argument: Any, ran: dict[fx.Node, _Ran]) -> Hashable:
    if isinstance(argument, fx.Node):
        return "node", ran[argument].said
    if isinstance(argument, (list, tuple)):
        return tuple(_said(inner, ran) for inner in argument)
    if isinstance(argument, dict):
        return tuple((name, _said(inner, ran)) for name, inner in argument.items())
    return type(argument), argument


def _said_of(value: Any) -> Hashable:
    return tuple(map(_said_of_leaf, pytree.tree_leaves(value)))


def _said_of_leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return leaf.dtype, leaf.device, leaf.shape, leaf.stride(), leaf.storage_offset()
    return type(leaf), leaf


def _types(value: Any) -> list[Any]:
    leaves = pytree.tree_leaves(value)
    return [(leaf.dtype, leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)]


def _is_plain(value: Any) -> bool:
    """Whether shapes, strides and types say all of some tensors."""
    return all(map(_is_plain_leaf, pytree.tree_leaves(value)))


def _is_plain_leaf(leaf: Any) -> bool:
    if not isinstance(leaf, Tensor):
        return leaf is None or isinstance(leaf, (bool, int, float, str))
    if not isinstance(leaf, FakeTensor) or leaf.layout is not torch.strided:
        return False
    return all(type(size) is int for size in leaf.shape) and not (leaf.is_conj() or leaf.is_neg())
