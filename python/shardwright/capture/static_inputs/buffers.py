"""Buffers whose values are known while a model is traced: strides, sizes and flags that are registered.

A model that reads one in Python (`int(self.stride)`, `if self.causal:`) goes the way of its value, and what
is computed of nothing but such buffers may be read, too. The graph computes with the buffers as ever; only
what leaves tensors for Python is a number then. So a program is right for the values that were read, which
are `Known.fixed`: the runtime compares them with what it holds. No buffer is known that the forward writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree

from ..fx_nodes import mutated
from ..state.memory import has_no_value, identity

# Sizes have no more elements; what has more is a table.
_MOST_ELEMENTS = 16
_NONE: frozenset[str] = frozenset()


class Known:
    """The values that buffers have, by their first names, and which of them a forward has read."""

    def __init__(self, module: nn.Module) -> None:
        buffers = module.named_buffers()
        self._values = {name: buffer.detach().cpu().clone() for name, buffer in buffers if _is_small(buffer)}
        self._read: set[str] = set()

    @property
    def fixed(self) -> dict[str, Any]:
        """What was read, as plain numbers, in the module's order."""
        return {name: value.tolist() for name, value in self._values.items() if name in self._read}

    def attached(self, module: nn.Module) -> Callable[..., None]:
        """A hook that says when a traced forward begins what is known; `module` is as it was given."""
        self._read.clear()
        # Made here: within the trace there are no values. What is written in place is not the next trace's.
        values = {name: value.clone() for name, value in self._values.items()}
        first = {identity(module.get_buffer(name)): name for name in values}
        buffers = module.named_buffers(remove_duplicate=False)
        known_as = {name: first[identity(one)] for name, one in buffers if identity(one) in first}

        def attach(traced: nn.Module, *_: Any) -> None:
            mode = proxy_tensor.get_proxy_mode()
            if mode is None:
                return
            for name, known in known_as.items():
                buffer = traced.get_buffer(name)
                if proxy_tensor.has_proxy_slot(buffer, mode.tracer):
                    slot = proxy_tensor.get_proxy_slot(buffer, mode.tracer)
                    value = _Value.wrap(values[known], frozenset([known]), self._read)
                    tracked = proxy_tensor._ProxyTensor(slot.proxy, value)
                    proxy_tensor.set_proxy_slot(buffer, mode.tracer, tracked)

        return attach

    def forget_written(self, program: ExportedProgram) -> bool:
        """Forgets what the traced forward has read and may write, or whose readings it may. Whether there
        was any: it is to be traced again."""
        written = self._read & _written(program)
        for name in written:
            del self._values[name]
        return bool(written)


def has_values(module: nn.Module, fixed: Mapping[str, Any]) -> bool:
    """Whether a program for these values of buffers is one for the module."""
    now = {name: module.get_buffer(name) for name in fixed}
    return all(not has_no_value(now[name]) and now[name].tolist() == value for name, value in fixed.items())


def _is_small(buffer: Tensor) -> bool:
    counts = not (buffer.is_floating_point() or buffer.is_complex())
    return counts and buffer.numel() <= _MOST_ELEMENTS and not has_no_value(buffer)


class _Value(Tensor):
    """A value, and the buffers that it is made of; it notes these where it is read."""

    value: Tensor
    made_of: frozenset[str]
    read: set[str]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def wrap(value: Tensor, names: frozenset[str], read: set[str]) -> _Value:
        made: _Value = Tensor._make_wrapper_subclass(_Value, value.shape, dtype=value.dtype)  # type: ignore
        made.value, made.made_of, made.read = value, names, read
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        known = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, _Value)]
        args, kwargs = pytree.tree_map_only(_Value, lambda one: one.value, (args, kwargs or {}))
        result = func(*args, **kwargs)
        names, read = frozenset().union(*(one.made_of for one in known)), known[0].read
        leaves = pytree.tree_leaves(result)
        # What is written into another constant is read by that, which notes nothing.
        if func._schema.is_mutable or not all(leaf is None or isinstance(leaf, Tensor) for leaf in leaves):
            read |= names
        return pytree.tree_map_only(Tensor, lambda one: _Value.wrap(one, names, read), result)


def _written(program: ExportedProgram) -> set[str]:
    """The buffers that lie in what operators write, or in what is computed of buffers and constants alone
    and written then: by another name of its memory what is written could be read as it was before."""
    specs = program.graph_signature.input_specs
    held = {
        spec.arg.name: spec for spec in specs if spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    }
    made_of: dict[fx.Node, frozenset[str]] = {}
    written: set[str] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in held:
            spec = held[node.name]
            made_of[node] = frozenset([str(spec.target)]) if spec.kind is InputKind.BUFFER else _NONE
        elif node.op == "get_attr":
            made_of[node] = _NONE
        elif node.op == "call_function":
            reads = node.all_input_nodes
            names = _NONE.union(*(made_of.get(read, _NONE) for read in reads))
            if all(read in made_of for read in reads):
                made_of[node] = names
            if any(target in made_of for target in mutated(node)):
                written |= names
    return written | {str(name) for name in program.graph_signature.buffers_to_mutate.values()}


def said_of_fixed(fixed: dict[str, Any]) -> list[str]:
    """A note."""
    if not fixed:
        return []
    name, value = next(iter(fixed.items()))
    more = f" and the values of {len(fixed) - 1} more buffers" if fixed.keys() - {name} else ""
    it = "them" if more else "it"
    return [f"the program is for `{name}` = {value}{more}: the model reads {it} in Python"]
