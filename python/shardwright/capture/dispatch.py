"""What an operator calls on the level below it, as a dispatch mode sees it; and putting that in its place."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .fx_nodes import insert, is_getitem

Call = tuple[Any, tuple[Any, ...], dict[str, Any], Any]


def called(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """What the operator gives. Zeros that are made only where they are read are made at once.

    PyTorch's backward passes such zeros on; below a mode the next operator reads memory that is not there.
    """
    if func is torch.ops.aten._efficientzerotensor.default:
        func = torch.ops.aten.zeros.default
    return func(*args, **(kwargs or {}))


class Record(TorchDispatchMode):
    """The calls that reach the level below, with what they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = called(func, args, kwargs)
        # The rest asks for devices and the like.
        if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(out)):
            self.calls.append((func, args, kwargs or {}, out))
        return out


def put_in_place(
    program: ExportedProgram,
    node: fx.Node,
    calls: Sequence[Call],
    arguments: Mapping[int, Any],
    result: Any,
) -> None:
    """Puts recorded calls in the place of a node. ``arguments`` are the nodes of the tensors that the
    calls began with, by `id`."""
    nodes = dict(arguments)
    for target, args, kwargs, out in calls:
        args, kwargs = pytree.tree_map_only(Tensor, lambda x: nodes[id(x)], (args, kwargs))
        made = insert(node, target, args, kwargs, out)
        for at, tensor in enumerate(out if isinstance(out, (tuple, list)) else [out]):
            is_part = isinstance(out, (tuple, list))
            nodes[id(tensor)] = insert(node, operator.getitem, (made, at), {}, tensor) if is_part else made
    if isinstance(result, Tensor):
        _replace(program, node, nodes[id(result)])
    else:
        for user in list(node.users):
            _replace(program, user, nodes[id(result[user.args[1]])])  # type: ignore[index]
    program.graph.erase_node(node)


def _replace(program: ExportedProgram, node: fx.Node, by: fx.Node) -> None:
    if any(user.op == "output" for user in node.users):
        program.graph_signature.replace_all_uses(node.name, by.name)
    node.replace_all_uses_with(by)
    if is_getitem(node):
        program.graph.erase_node(node)
