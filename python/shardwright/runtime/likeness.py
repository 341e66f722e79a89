"""The model as it was written, without values: what its modules are, and what a loop changes of them.

A program is made for attributes as they are. Who sets one that the model may read gets another program, for
plain values; all else is refused when it is set. What is no attribute of the model is the loop's own.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RuntimeFault

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype)
_NOTHING = object()


class Likeness:
    """`skeleton` is nothing where a program came without its model; `fixed`: no other can be made."""

    def __init__(self, skeleton: nn.Module | None, fixed: bool):
        self.skeleton, self._fixed = skeleton, fixed
        # Of parameters here, by `id`: the single device's shapes of those that are parts, and of all.
        self.shapes: dict[int, torch.Size] = {}
        self.all_shapes: dict[int, torch.Size] = {}
        # By path and name what was set, and what was there before.
        self._changes: dict[tuple[str, str], tuple[Any, Any]] = {}

    def at(self, path: str) -> nn.Module | None:
        return None if self.skeleton is None else self.skeleton.get_submodule(path)

    def know(self, parameters: Mapping[Tensor, torch.Size]) -> None:
        self.all_shapes = {id(parameter): shape for parameter, shape in parameters.items()}
        self.shapes = {
            id(parameter): shape for parameter, shape in parameters.items() if parameter.shape != shape
        }

    def take_over(self, other: Likeness) -> None:
        self._changes = dict(other._changes)

    def reads(self, path: str, name: str) -> bool:
        """Whether the model may read an attribute of this name there."""
        module = self.at(path)
        if module is None:
            return False
        if name in vars(module) or inspect.getattr_static(type(module), name, _NOTHING) is not _NOTHING:
            return True
        held = (module._parameters, module._buffers, module._modules)
        return any(name in table for table in held) or name in _named_in(module)

    def set(self, path: str, name: str, value: Any) -> None:
        module = self.at(path)
        assert module is not None
        said = f"{path}.{name}" if path else name
        if self._fixed:
            raise refusal(said, "the program was given without a way to make another one")
        if any(name in table for table in (module._parameters, module._buffers, module._modules)):
            raise refusal(said, "the parallel model holds parts of its parameters, buffers and modules")
        if not _is_plain(value):
            raise refusal(said, f"a {type(value).__name__} may change without being set again")
        _, before = self._changes.get((path, name), (None, vars(module).get(name, _NOTHING)))
        setattr(module, name, value)
        if type(before) is type(value) and repr(before) == repr(value):
            self._changes.pop((path, name), None)
        else:
            self._changes[path, name] = value, before

    @property
    def key(self) -> tuple[str, ...]:
        """By this a program is chosen, and the ranks compare it."""
        return tuple(
            f"{path}.{name} = {value!r}".lstrip(".")
            for (path, name), (value, _) in sorted(self._changes.items())
        )


def refusal(name: str, why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0803",
        f"`{name}` of a parallelized model cannot be set",
        why=why,
        fix="set it before `parallelize`; keep what changes from step to step in a buffer or an argument;"
        " load values with `model.load_full_state_dict(...)`",
    )


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else isinstance(value, _PLAIN)


def _named_in(module: nn.Module) -> set[str]:
    """All names and texts in the code of the module's own classes, and of functions that it closes over."""
    own = [kind for kind in type(module).__mro__ if kind not in nn.Module.__mro__]
    found: set[str] = set()
    for kind in own:
        for value in vars(kind).values():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            for code in _codes(function):
                found |= {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}
    return found


def _codes(function: Any, depth: int = 0) -> Iterator[types.CodeType]:
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType) or depth > 3:
        return
    pending = [code]
    while pending:
        found = pending.pop()
        yield found
        pending += [inner for inner in found.co_consts if isinstance(inner, types.CodeType)]
    for cell in function.__closure__ or ():
        try:
            yield from _codes(cell.cell_contents, depth + 1)
        except ValueError:  # not filled yet
            continue
