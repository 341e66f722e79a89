"""Borrowing a module: other tensors in place of its own for a while, and then as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from .hidden import containers, refill
from .memory import Aliases, identity, seen_in
from .registered import Registered

_TABLES = ("_parameters", "_buffers", "_modules")


class Fake:
    """Tensors without data that say they are on the CPU, whatever machine the real ones are on.

    So meta, CPU and GPU models take the same way through their code, and a constant that the
    forward makes on the device of its input has a value.
    """

    def __init__(self, dtype_of: Callable[[Tensor], torch.dtype] = lambda tensor: tensor.dtype) -> None:
        """`dtype_of` is that in which a parameter is seen."""
        self._dtype_of = dtype_of
        env = ShapeEnv(tracked_fakes=[], trace_asserts=True)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
        self._made: dict[Hashable, tuple[Tensor, Tensor]] = {}

    def once(self, tensor: Tensor) -> Tensor:
        """The fake of a module's tensor: the same one for the same tensor, so ties stay."""
        key = identity(tensor)
        if key not in self._made:
            self._made[key] = (tensor, self._make_for_module(tensor))
        return self._made[key][1]

    def fresh(self, tensor: Tensor) -> Tensor:
        """The fake of an argument: a new one each time, so that equal arguments stay apart."""
        return self._make(tensor, tensor.dtype).requires_grad_(tensor.requires_grad)

    def _make(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        with self.mode, torch.no_grad():
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device="cpu")

    def _make_for_module(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, nn.Parameter):
            made = self._make(tensor, self._dtype_of(tensor))
            return nn.Parameter(made, requires_grad=tensor.requires_grad)
        return self._make(tensor, tensor.dtype)

    def attributes(self, module: nn.Module, registered: Registered) -> Callable[[Tensor], Tensor]:
        """For tensors outside the tables: they become constants, so their data must stay; but for those that
        lie in the memory of registered ones, whose stand-ins `registered` follows."""
        aliases, owners = Aliases(module), {}
        for part in module.modules():
            for name, tensor in (*part._parameters.items(), *part._buffers.items()):
                if tensor is not None:
                    owners[identity(tensor)] = (part, name)
                    registered.add(self.once(tensor), part, name)

        def swap(tensor: Tensor) -> Tensor:
            if identity(tensor) in owners:
                return self.once(tensor)
            base = aliases.base(tensor)
            if base is not None:
                stand_in = self._make(tensor, tensor.dtype)
                owner, name = owners[identity(base)]
                registered.derive(stand_in, lambda: seen_in(base, tensor, getattr(owner, name)))
                return stand_in
            if tensor.is_meta:
                return self.once(tensor)
            return tensor.detach().cpu() if tensor.requires_grad or not tensor.is_cpu else tensor

        return swap


@contextmanager
def borrowed(
    module: nn.Module,
    table: Callable[[Tensor], Tensor],
    attribute: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Iterator[None]:
    """Swaps tensors by ``table`` and ``attribute``; afterwards every attribute is as before, hooks that
    the forward registered included."""
    saved = [(part, dict(vars(part))) for part in module.modules()]
    inside = [pair for part in module.modules() for pair in _containers(part)]
    try:
        for part in module.modules():
            _swap(part, table, attribute)
        yield
    finally:
        for part, attributes in saved:
            vars(part).clear()
            vars(part).update(attributes)
        for container, before in inside:
            refill(container, before)


def following(module: nn.Module, table: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """For `borrowed`: what other tensors are, by what they are if they lie in a parameter or buffer."""
    aliases = Aliases(module)

    def attribute(tensor: Tensor) -> Tensor:
        base = aliases.base(tensor)
        if base is None or identity(base) == identity(tensor) or isinstance(tensor, nn.Parameter):
            return table(tensor)
        now = table(base)
        return tensor if now is base else seen_in(base, tensor, now)

    return attribute


def _containers(module: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Its tables, hooks and whatever containers it keeps, which may change while the attribute stays."""
    for value in list(vars(module).values()):
        yield from containers(value)


def _swap(
    module: nn.Module, table: Callable[[Tensor], Tensor], attribute: Callable[[Tensor], Tensor]
) -> None:
    for entries in (module._parameters, module._buffers):
        for name, tensor in entries.items():
            entries[name] = None if tensor is None else table(tensor)  # type: ignore[assignment]
    for name, value in list(vars(module).items()):
        is_plain = name not in _TABLES and isinstance(value, (Tensor, list, tuple, dict))
        if is_plain and _tensors(value):
            vars(module)[name] = pytree.tree_map_only(Tensor, attribute, value)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


@contextmanager
def same_randomness() -> Iterator[None]:
    """Restores every random state that a forward may use."""
    state = random.getstate()
    with torch.random.fork_rng(enabled=True):
        try:
            yield
        finally:
            random.setstate(state)
