"""Parameters that a forward writes, as an encoder does that follows another one by its mean.

While operators are made functional such a parameter is a buffer, so that what reads it after it was written
reads the new value. Under autograd it stays the tensor that the optimizer knows: the gradient of what is
computed of its new value is the parameter's, which `shardwright.written` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.utils import _pytree as pytree

from ... import library  # noqa: F401  (registers the operator)
from ...errors import CaptureError
from .. import lines
from ..casts import Casting
from ..fx_nodes import ASSIGNS, insert, is_no_grad, is_view, mutated
from ..fx_nodes import replace as put_instead
from ..lines import module_of, said_in
from ..state.names import Names

_ATEN = torch.ops.aten
_WRITTEN = torch.ops.shardwright.written.default
# In the one place of a node's meta that decomposing carries on.
_OF = "shardwright_written"
# Of an operand the derivative of these keeps the other ones only.
_LINEAR = {
    *("linear", "matmul", "mm", "bmm", "mv", "addmm", "einsum"),
    *("conv1d", "conv2d", "conv3d", "convolution", "embedding"),
    *("add", "sub", "mul", "neg", "to", "_to_copy", "clone", "contiguous"),
}


@dataclass
class _Followed:
    """A parameter that is written, and what lies in its memory."""

    name: str
    node: fx.Node
    is_trained: bool
    written: set[fx.Node] = field(default_factory=set)
    """The parameter itself, by the operators that have written it."""
    views: set[fx.Node] = field(default_factory=set)
    """Of it, with its gradient."""
    cut: set[fx.Node] = field(default_factory=set)
    """Of it, without its gradient."""
    writes: list[fx.Node] = field(default_factory=list)

    @property
    def all(self) -> set[fx.Node]:
        return self.written | self.views | self.cut


def as_buffers(program: ExportedProgram, module: nn.Module, names: Names, casting: Casting) -> None:
    """Makes buffers of the parameters that are written, and marks what has a gradient of a new value."""
    followed = _written(program, module, names)
    if not followed:
        return
    order = {node: at for at, node in enumerate(program.graph.nodes)}
    carries = _carrying(program, module)
    for it in followed:
        _refuse_casts(it, module.get_parameter(it.name), casting)
        _refuse_assigned(it, order)
        _refuse_gradients(it, order, carries)
        first = order[it.writes[0]]
        readers = {user for node in it.written for user in node.users if order.get(user, first) > first}
        for read in sorted(readers, key=order.__getitem__):
            if not is_no_grad(read) and not mutated(read) and read.op == "call_function":
                _mark(it, read)
        _set_kind(program, names, it.name, InputKind.BUFFER)


def as_parameters(program: ExportedProgram, module: nn.Module, names: Names) -> None:
    """Makes parameters of them again, once operators are functional."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    held: dict[str, fx.Node] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.BUFFER and names.canonical(str(spec.target)) in names.params:
            held.setdefault(names.canonical(str(spec.target)), nodes[spec.arg.name])
    for node in list(program.graph.nodes):
        name = (node.meta.get("custom") or {}).get(_OF)
        if node.target is _WRITTEN and name is not None:
            _finish(program, node, held[name], module.get_parameter(name).requires_grad)
    for name in held:
        _set_kind(program, names, name, InputKind.PARAMETER)


def is_new_value(node: fx.Node) -> bool:
    """Whether it is what a parameter is that was written."""
    return node.target is _WRITTEN


def _finish(program: ExportedProgram, read: fx.Node, held: fx.Node, is_trained: bool) -> None:
    value: Any = read.args[1]
    if not is_trained:
        put_instead(program, read, insert(read, _ATEN.detach.default, (value,), {}, read.meta["val"]))
        program.graph.erase_node(read)
    elif value is held:
        put_instead(program, read, held)
    else:
        read.args = (held, value)


def _set_kind(program: ExportedProgram, names: Names, name: str, kind: InputKind) -> None:
    specs = program.graph_signature.input_specs
    for at, spec in enumerate(specs):
        if spec.kind in (InputKind.BUFFER, InputKind.PARAMETER) and names.canonical(str(spec.target)) == name:
            specs[at] = InputSpec(kind, spec.arg, spec.target, True if kind is InputKind.BUFFER else None)
            value = program.state_dict.get(str(spec.target))
            if isinstance(value, Tensor) and kind is InputKind.BUFFER:
                program.state_dict[str(spec.target)] = value.detach()


# ---- what is written ------------------------------------------------------------------------


def _written(program: ExportedProgram, module: nn.Module, names: Names) -> list[_Followed]:
    """Each by its first name; further names of it are merged into the node of that."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    first: dict[str, fx.Node] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.PARAMETER:
            name, node = names.canonical(str(spec.target)), nodes[spec.arg.name]
            if first.setdefault(name, node) is not node:
                node.replace_all_uses_with(first[name])
    all_of_them = [
        _Followed(name, node, module.get_parameter(name).requires_grad, written={node})
        for name, node in first.items()
    ]
    lies_in = {it.node: it for it in all_of_them}
    for node in program.graph.nodes:
        _follow(lies_in, node)
    return [it for it in all_of_them if it.writes]


def _follow(lies_in: dict[fx.Node, _Followed], node: fx.Node) -> None:
    written = next((read for read in mutated(node) if read in lies_in), None)
    if written is not None:
        it = lies_in[node] = lies_in[written]
        it.writes.append(node)
        next(kind for kind in (it.written, it.views, it.cut) if written in kind).add(node)
    elif is_view(node):
        read = next((read for read in node.all_input_nodes if read in lies_in), None)
        if read is not None:
            it = lies_in[node] = lies_in[read]
            is_cut = read in it.cut or is_no_grad(node) or node.target is _ATEN.detach.default
            (it.cut if is_cut else it.views).add(node)


def _carrying(program: ExportedProgram, module: nn.Module) -> set[fx.Node]:
    """What has a gradient of something trained, or of an input, and gives one to it."""
    carrying: set[fx.Node] = set()
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            spec, value = kinds[node.name], node.meta.get("val")
            if spec.kind is InputKind.PARAMETER:
                carries = module.get_parameter(str(spec.target)).requires_grad
            else:
                carries = isinstance(value, Tensor) and value.requires_grad
            carrying.update([node] if carries else [])
        elif _passes_on(node) and carrying.intersection(node.all_input_nodes):
            carrying.add(node)
    return carrying & _teaching(program)


def _teaching(program: ExportedProgram) -> set[fx.Node]:
    """What results lead back to."""
    teaching: set[fx.Node] = set()
    for node in reversed(program.graph.nodes):
        if node.op == "output" or (node in teaching and _passes_on(node)):
            teaching.update(node.all_input_nodes)
    return teaching


def _passes_on(node: fx.Node) -> bool:
    """Whether a gradient of its results may reach its operands."""
    if is_no_grad(node) or node.target is _ATEN.detach.default:
        return False
    values = pytree.tree_leaves(node.meta.get("val"))
    return any(v.is_floating_point() or v.is_complex() for v in values if isinstance(v, Tensor))


# ---- reading the new value --------------------------------------------------------------------


def _mark(it: _Followed, read: fx.Node) -> None:
    """The gradient of what is read of a new value is the parameter's."""
    for now in [node for node in read.all_input_nodes if node in it.written]:
        if read.target is _ATEN.detach.default or not now.meta["val"].is_floating_point():
            continue
        marked = insert(read, _WRITTEN, (now, now), {}, now.meta["val"])
        marked.meta["custom"] = {**(marked.meta.get("custom") or {}), _OF: it.name}
        read.replace_input_with(now, marked)


# ---- what is refused --------------------------------------------------------------------------


def _refuse_casts(it: _Followed, parameter: Tensor, casting: Casting) -> None:
    if {casting.read(parameter), casting.computed(parameter)} != {parameter.dtype}:
        raise _refused(
            "SW0145",
            it.writes[0],
            f"the forward writes the parameter `{it.name}`, which a precision keeps in another dtype",
            why="ranks keep more digits of the parameter than the forward writes",
            fix="keep what the forward writes in a buffer, or compile without this precision",
        )


def _refuse_assigned(it: _Followed, order: dict[fx.Node, int]) -> None:
    """With other data a parameter lies in other memory: here it is written where it lies."""
    for write in (node for node in it.writes if node.meta.get(ASSIGNS)):
        before = [node for node in it.all - it.written if order[node] < order[write]]
        before = [node for node in before if node is not mutated(write)[0]]
        late = any(order[user] > order[write] for node in before for user in node.users if user in order)
        if late or _lives_elsewhere(write, order):
            raise _refused(
                "SW0133",
                write,
                f"the model gives the parameter `{it.name}` data that also has another name",
                why="in the model the two would be one tensor, in the graph they are two",
                fix="write `parameter.copy_(value)` under `torch.no_grad()`, or give it a `.clone()`",
            )


def _lives_elsewhere(write: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether what is assigned is something held, or is written later."""
    source: Any = write.args[1]
    chain = [source]
    while isinstance(source, fx.Node) and is_view(source) and source.all_input_nodes:
        source = source.all_input_nodes[0]
        chain.append(source)
    if not isinstance(source, fx.Node) or source.op == "placeholder":
        return True
    return any(order.get(user, 0) > order[write] and mutated(user) for node in chain for user in node.users)


def _refuse_gradients(it: _Followed, order: dict[fx.Node, int], carries: set[fx.Node]) -> None:
    last = max(order[node] for node in it.writes)
    for write in it.writes:
        target, others = mutated(write)[0], carries.intersection(set(write.all_input_nodes) - it.all)
        if target in it.views:
            raise _behind(it, write, "by a view that has its gradient")
        if others and target in it.written and not is_no_grad(write):
            raise _behind(it, write, "outside of `torch.no_grad()`, with a value that has a gradient")
    for node in it.written | it.views:
        readers = [(read, order[read]) for read in node.users if read in order and not is_no_grad(read)]
        is_early = it.is_trained and node in it.views and order[node] < last
        if is_early and any(at > last for _, at in readers):
            raise _behind(it, node, "and reads it by a view that it made before")
        for read, at in readers:
            if at < last and read not in it.all and _keeps(it, read, carries):
                raise _behind(it, read, "after an operator that needs the old value for its gradient")


def _keeps(it: _Followed, read: fx.Node, carries: set[fx.Node]) -> bool:
    """Whether backward may need the parameter's value."""
    if read not in carries:
        return False
    others = [node for node in read.all_input_nodes if node not in it.all]
    if carries.intersection(others):
        return True
    return it.is_trained and str(read.target).removeprefix("aten.").split(".")[0] not in _LINEAR


def _behind(it: _Followed, node: fx.Node, how: str) -> CaptureError:
    return _refused(
        "SW0144",
        node,
        f"the model writes the parameter `{it.name}` in its forward, {how}",
        why="one device computes its gradient with the new value, or stops with an error of autograd",
        fix="write it under `torch.no_grad()`, before it is read, or once nothing with a gradient reads it",
    )


def _refused(code: str, node: fx.Node, what: str, why: str, fix: str) -> CaptureError:
    place = lines.with_source(node.stack_trace)
    return said_in(module_of(node), CaptureError(code, what, place=place, why=why, fix=fix))
