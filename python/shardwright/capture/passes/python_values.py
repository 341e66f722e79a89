"""Sizes and numbers that Python took from data: a program would be for exactly these."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from .. import lines
from ..lines import module_of, said_in
from ..opaque.plain import said_of
from ..torch_errors import data_dependent

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def refuse_python_values(graph: fx.Graph) -> None:
    """Sizes and numbers that are taken from data."""
    for node in graph.nodes:
        tensors = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]
        sized = any(type(size) is not int for tensor in tensors for size in tensor.shape)
        read = next((one for one in node.all_input_nodes if isinstance(one.meta.get("val"), _SYMBOLIC)), None)
        if sized or (tensors and read):
            where = read or node
            error = said_of(where.stack_trace, data_dependent(lines.with_source(where.stack_trace)))
            raise said_in(module_of(where), error)
