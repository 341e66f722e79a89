"""Functions and operators of `torch.library` for which a rule is registered: operators of the graph."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ... import as_python
from ...errors import CaptureError
from .. import lines
from .calling import Call, called, refusal, tensors_of
from .plain import stood_for

_FUNCTION = torch.ops.shardwright.function.default


@contextmanager
def registered_as_operators() -> Iterator[None]:
    """While a model is traced. Functions of autograd are watched anyway."""
    with ExitStack() as stack:
        for one in as_python.all_registered():
            if isinstance(one.function, types.FunctionType):
                stack.enter_context(stood_for(one.function, partial(_stand_in, one)))
        yield


def _stand_in(one: as_python.Registered, original: Callable[..., Any]) -> Callable[..., Any]:
    def cannot(why: str) -> NoReturn:
        raise refusal(original.__name__, why)

    def call(*args: Any, **kwargs: Any) -> Any:
        if as_python.is_inside():
            return original(*args, **kwargs)
        if as_python.name_of(one.function) is None:
            cannot(f"other ranks do not find `{one.name}`")
        return called(one.name, original, args, kwargs, cannot)

    return call


def write_registered(program: ExportedProgram) -> None:
    """Calls of operators of `torch.library` become calls of functions that have a rule."""
    for node in list(program.graph.nodes):
        if isinstance(node.target, torch._ops.OpOverload):
            one = as_python.registered_as(as_python.library_name(node.target))
            if one is not None:
                _write(program.graph, node, one)
    program.graph.lint()


def _write(graph: fx.Graph, node: fx.Node, one: as_python.Registered) -> None:
    place = lines.with_source(node.stack_trace)
    if node.target._schema.is_mutable:  # type: ignore[union-attr]
        why = "it changes a tensor that it is given, and the graph knows no such change"
        raise CaptureError(
            "SW0103",
            f"the model calls `{node.target}`, which cannot be an operator",
            place=place,
            why=why,
            fix="register one that gives new tensors",
        )
    read: dict[int, fx.Node] = {}

    def stand_for(arg: fx.Node) -> Tensor:
        tensor = torch.empty_like(arg.meta["val"], device="meta")
        read[id(tensor)] = arg
        return tensor

    args, kwargs = pytree.tree_map_only(fx.Node, stand_for, (node.args, node.kwargs))
    call = Call.from_call(one.name, node.target, args, kwargs)
    values = tensors_of(node.meta["val"])
    rule = call.checked_rule(values, place)
    operands = [read[id(tensor)] for tensor in call.tensors]
    with graph.inserting_before(node):
        results = graph.call_function(_FUNCTION, (one.name, operands, call.text, *rule))
        results.meta = {**node.meta, "val": values}
        _hand_on(graph, node, results, values)
    graph.erase_node(node)


def _hand_on(graph: fx.Graph, node: fx.Node, results: fx.Node, values: list[Tensor]) -> None:
    """To those that read a result."""
    if isinstance(node.meta["val"], Tensor):
        first = graph.call_function(operator.getitem, (results, 0))
        first.meta = {**node.meta, "val": values[0]}
        node.replace_all_uses_with(first)
        return
    for user in list(node.users):
        user.replace_input_with(node, results)
