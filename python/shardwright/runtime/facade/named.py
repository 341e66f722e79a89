"""Which names the code of a model mentions: of what it does not mention, it reads nothing."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

# Deeper than this no function is followed through closures.
_DEEPEST = 3


def named_in(module: nn.Module) -> set[str]:
    """All names and texts in the code of the module's own classes, and of functions that it closes over."""
    return {name for kind in _own(type(module)) for value in vars(kind).values() for name in _names(value)}


def named_by_forward(model: nn.Module, others: Iterable[type]) -> frozenset[str]:
    """The same for the forwards of all modules, and for what they reach by name: functions, and methods of
    the model's classes and of `others`."""
    kinds = {base for kind in {*map(type, model.modules()), *others} for base in _own(kind)}
    reached: set[str] = set()
    pending: list[Any] = [vars(kind).get("forward") for kind in kinds]
    for module in model.modules():
        pending += [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        names = _names(value)
        around = getattr(_function(value), "__globals__", {})
        pending += [around[name] for name in names if isinstance(around.get(name), types.FunctionType)]
        pending += [vars(kind)[name] for name in names - reached for kind in kinds if name in vars(kind)]
        reached |= names
    return frozenset(reached)


def _own(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base not in nn.Module.__mro__]


def _names(value: Any) -> set[str]:
    names: set[str] = set()
    for code in _codes(_function(value)):
        names |= {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}
    return names


def _function(value: Any) -> Any:
    """Also of a property, of what is in a class, and of what stands before a function and is none itself."""
    for name in ("fget", "__func__", "func", "__wrapped__"):
        if not isinstance(value, types.FunctionType):
            value = getattr(value, name, None) or value
    return value


def _codes(function: Any, depth: int = 0) -> Iterator[types.CodeType]:
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType) or depth > _DEEPEST:
        return
    pending = [code]
    while pending:
        current = pending.pop()
        yield current
        pending += [inner for inner in current.co_consts if isinstance(inner, types.CodeType)]
    for cell in function.__closure__ or ():
        try:
            yield from _codes(cell.cell_contents, depth + 1)
        except ValueError:  # not filled yet
            continue
