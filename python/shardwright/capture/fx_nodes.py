"""Nodes of a graph of PyTorch's: what they are, what their schema says, and putting others in their place."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind
from torch.fx.experimental import proxy_tensor

NO_GRAD = "shardwright_no_grad"
# That a node is an assignment to `.data`.
ASSIGNS = "shardwright_assigns"


def is_no_grad(node: fx.Node) -> bool:
    return bool((node.meta.get("custom") or {}).get(NO_GRAD))


def mark_no_grad(node: fx.Node, no_grad: bool) -> None:
    """In the one place of a node's meta that decomposing carries on."""
    node.meta["custom"] = {**(node.meta.get("custom") or {}), NO_GRAD: no_grad}


def is_getitem(node: fx.Node) -> bool:
    return node.target is operator.getitem


def insert(before: fx.Node, target: Any, args: Any, kwargs: Any, value: Any) -> fx.Node:
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    node.meta = {**before.meta, "val": value}
    return node


def replace(program: ExportedProgram, node: fx.Node, by: Any) -> None:
    program.graph_signature.replace_all_uses(node.name, by.name)
    node.replace_all_uses_with(by)


# ---- what a program gives ------------------------------------------------------------------------


def updated_of(program: ExportedProgram) -> list[str]:
    """The buffers and parameters that a forward changes."""
    specs = program.graph_signature.output_specs
    return [str(spec.target) for spec in specs if spec.kind is OutputKind.BUFFER_MUTATION]


def results_of(program: ExportedProgram) -> list[fx.Node | Any]:
    """The leaves of the result: nodes, and baked values."""
    nodes = {node.name: node for node in program.graph.nodes}
    leaves: list[Any] = []
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            baked = isinstance(spec.arg, ConstantArgument)
            leaves.append(spec.arg.value if baked else nodes[spec.arg.name])
    return leaves


# ---- what the schema of an operator says ---------------------------------------------------------


def is_view(node: fx.Node) -> bool:
    """Whether a result may lie in the memory of an operand."""
    if is_getitem(node):
        return True
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(value.alias_info is not None for value in returns)


def mutated(node: fx.Node) -> list[fx.Node]:
    """What it writes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    named = {arg.name: value for arg, value in zip(schema.arguments, node.args, strict=False)} | node.kwargs
    written = [arg.name for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write]
    return [value for name in written if isinstance(value := named.get(name), fx.Node)]


# ---- while a graph is traced ------------------------------------------------------------------


def node_of(tensor: Any) -> fx.Node | None:
    """By what a tensor is made in the graph that is being traced."""
    mode = proxy_tensor.get_proxy_mode()
    if mode is None or not isinstance(tensor, Tensor):
        return None
    if not proxy_tensor.has_proxy_slot(tensor, mode.tracer):
        return None
    node: fx.Node = proxy_tensor.get_proxy_slot(tensor, mode.tracer).proxy.node
    return node
