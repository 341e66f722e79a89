"""Regions of the exported graph, under `no_grad` and autocast, become marks on its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..checkpointed_regions import SPANS, mark_spans
from ..fx_nodes import NO_GRAD, mark_no_grad
from .dead_code import drop_unread

_GRAD_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST_REGION = torch.ops.higher_order.wrap_with_autocast


def inline_regions(program: ExportedProgram) -> None:
    """Puts the nodes of every region into the graph, marked: decomposing would lose the regions."""
    module = program.graph_module
    # Export cuts regions out of the graph, and a node that nothing reads may be forgotten among the readers
    # of another.
    for node in module.graph.nodes:
        for read in node.all_input_nodes:
            read.users.setdefault(node)
    for name, inner in _inline_all(module):
        program.graph_signature.replace_all_uses(name, inner.name)
    for node in (node for node in module.graph.nodes if node.op == "call_function"):
        mark_no_grad(node, node.meta.get(NO_GRAD, False))
        mark_spans(node, node.meta.get(SPANS, ()))
    drop_unread(module.graph)


def _inline_all(owner: fx.GraphModule) -> list[tuple[str, fx.Node]]:
    """The names of the regions' results, and the nodes that are there instead."""
    renamed = []
    for node in list(owner.graph.nodes):
        if node.target in (_GRAD_REGION, _AUTOCAST_REGION):
            renamed += _inline(owner, node)
    return renamed


def _inline(owner: fx.GraphModule, call: fx.Node) -> list[tuple[str, fx.Node]]:
    body, operands = _body(owner, call)
    _inline_all(body)
    results = _copy_body(body, call, operands)
    renamed = []
    for user in list(call.users):
        inner = results[user.args[1]]  # type: ignore[index]
        renamed.append((user.name, inner))
        user.replace_all_uses_with(inner)
        owner.graph.erase_node(user)
    owner.graph.erase_node(call)
    return renamed


def _body(owner: fx.GraphModule, call: fx.Node) -> tuple[fx.GraphModule, list[Any]]:
    place = 1 if call.target is _GRAD_REGION else 4
    reference: Any = call.args[place]
    body = owner.get_submodule(str(reference.target))
    assert isinstance(body, fx.GraphModule)
    return body, list(call.args[place + 1 :])


def _copy_body(body: fx.GraphModule, call: fx.Node, operands: list[Any]) -> Sequence[Any]:
    """Copies the nodes of a region before its call; returns its results."""
    copies: dict[fx.Node, Any] = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=False))
    results: Any = ()
    for node in body.graph.nodes:
        if node.op == "output":
            results = pytree.tree_map_only(fx.Node, copies.__getitem__, node.args[0])
        elif node.op == "call_function":
            with call.graph.inserting_before(call):
                copies[node] = call.graph.node_copy(node, copies.__getitem__)
    return results  # type: ignore[no-any-return]
