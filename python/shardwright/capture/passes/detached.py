"""What a model cuts off from its gradients with `detach`, or while there are none, and writes.

Making operators functional takes a detached tensor for a view: what is written into it is cut off with it.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ...errors import CaptureError
from .. import lines
from ..fx_nodes import is_no_grad, is_view, mutated
from .parameter_updates import is_new_value

_DETACH, _DETACH_IN_PLACE = torch.ops.aten.detach.default, torch.ops.aten.detach_.default


def write_without_detach(program: ExportedProgram) -> None:
    """Where there is no gradient to cut off, such as that of a table of positions, a tensor is not detached
    before something that has one is written into it."""
    carries = _may_have_gradients(program)
    for node in program.graph.find_nodes(op="call_function", target=_DETACH):
        source = node.args[0]
        if source not in carries and list(source.users) == [node] and _is_written(node):
            node.replace_all_uses_with(source)
            program.graph.erase_node(node)


def _is_written(node: fx.Node) -> bool:
    """By this name or that of a view."""
    return any(node in mutated(user) or (is_view(user) and _is_written(user)) for user in node.users)


def _may_have_gradients(program: ExportedProgram) -> set[fx.Node]:
    with_gradients = _with_gradients(program)
    for node in program.graph.nodes:
        if is_new_value(node) or (_is_seen(node) and with_gradients.intersection(node.all_input_nodes)):
            with_gradients.update((node, *mutated(node)))
    return with_gradients


def refuse_hidden_writes(program: ExportedProgram) -> None:
    """Refuses in-place operators that autograd does not see but whose tensor has a gradient:
    their functional form would lose it."""
    carries = _with_gradients(program)
    hidden: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            continue
        # What is detached in place is written by nobody.
        for written in mutated(node) if node.target is not _DETACH_IN_PLACE else ():
            if written in hidden or (not _is_seen(node) and written in carries):
                raise _hidden_write(node)
        reads = node.all_input_nodes
        if is_new_value(node) or (_is_seen(node) and carries.intersection(reads) and _is_float(node)):
            carries.add(node)
        elif is_view(node) and (carries | hidden).intersection(mutated(node) or reads):
            hidden.add(node)


def keep_detach(program: ExportedProgram) -> None:
    """Making operators functional drops ``detach_``, and with it the cut in the gradient."""
    for node in program.graph.nodes:
        if node.target is _DETACH_IN_PLACE:
            source = node.args[0]
            if getattr(source, "target", None) is torch.ops.aten.lift_fresh_copy.default:
                continue
            node.target = _DETACH
            source.replace_all_uses_with(node, lambda user, node=node: user > node)


def _with_gradients(program: ExportedProgram) -> set[fx.Node]:
    """The inputs that may have one."""
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    inputs = program.graph.find_nodes(op="placeholder")
    return {node for node in inputs if kinds[node.name] in (InputKind.PARAMETER, InputKind.USER_INPUT)}


def _is_seen(node: fx.Node) -> bool:
    """By autograd."""
    return not is_no_grad(node) and node.target not in (_DETACH, _DETACH_IN_PLACE)


def _hidden_write(node: fx.Node) -> CaptureError:
    return CaptureError(
        "SW0107",
        "the model changes a tensor behind the back of autograd",
        place=lines.with_source(node.stack_trace),
        why=f"`{node.target}` without gradients gives a new value to a tensor that keeps the"
        " gradient of the old one",
        fix=_RENORM
        if "renorm" in str(node.target)
        else "change a `.clone()` of the detached tensor, or compute the new value out of place",
    )


_RENORM = (
    "leave out `max_norm`, and scale what is looked up:"
    " `e * (max_norm / e.norm(dim=-1, keepdim=True)).clamp(max=1)`"
)


def _is_float(node: fx.Node) -> bool:
    values = pytree.tree_leaves(node.meta.get("val"))
    return any(v.is_floating_point() or v.is_complex() for v in values if isinstance(v, Tensor))
