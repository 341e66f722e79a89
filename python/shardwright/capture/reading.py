"""What a model reads in Python of inputs that are known: a program is for this, whatever else they hold.

While the model is traced, a `Tape` notes what is computed of them beside the trace, and what of that is told
to Python. It is played again on the inputs of another call, which is the same program's if it tells the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .known_inputs import values_of

# Plain data in a step: tensors by who made them, and what JSON has no word for by its name.
_BY_NAME = (torch.dtype, torch.device, torch.memory_format, torch.layout)
_PLAIN = (bool, int, float, str, type(None))


class _Unwritten(Exception):
    """A call that cannot be written down."""


@dataclass(frozen=True)
class Reading:
    """The steps, as plain data. One has a function, what it is given and, if that is told, what it gave."""

    steps: tuple[Any, ...]
    lost: str = ""
    """The call that could not be written down, if there was one: then it is not known what is read."""

    @cached_property
    def name(self) -> str:
        """Of these steps, and no others."""
        return sha256(json.dumps(self.steps).encode()).hexdigest()

    @cached_property
    def told(self) -> tuple[str, ...]:
        """What the program is for."""
        return tuple(step["told"] for step in self.steps if step["told"] is not None)

    def of(self, inputs: Sequence[Tensor]) -> tuple[str, ...]:
        """What the model would read of these, up to the first that differs: what follows may not even have a
        meaning for them."""
        found: list[str] = []
        made: list[list[Tensor]] = []
        with torch.no_grad():
            values = [value_of(tensor, copied=self._writes) for tensor in inputs]
            for step in self.steps:
                try:
                    result = _run(step, values, made)
                except Exception as error:
                    return (*found, type(error).__name__)
                made.append(tensors_in(result))
                if step["told"] is not None:
                    found.append(said(result))
                    if found[-1] != step["told"]:
                        break
        return tuple(found)

    @cached_property
    def _writes(self) -> bool:
        return any(step["writes"] for step in self.steps)


class Tape:
    """Notes what is computed of some values, until it meets what cannot be written down."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Any]] = []
        # With the values, so that an id stays that of one.
        self._made: dict[int, tuple[Tensor, Any]] = {}
        self._lost = ""

    def begin(self, value: Tensor, position: int) -> None:
        """The value of an input."""
        self._made[id(value)] = value, {"input": position}

    def note(self, func: Any, args: Any, kwargs: Any, found: Any, *, told: bool, writes: bool) -> None:
        """A call that is made of values."""
        if self._lost:
            return
        try:
            call = {"call": name_of(func), "args": self._plain(args), "kwargs": self._plain(kwargs)}
            self._add({**call, "told": said(found) if told else None, "writes": writes}, found)
        except _Unwritten:
            self._lost = str(getattr(func, "__name__", func))

    def tell(self, value: Tensor) -> None:
        """A value that is given to Python as it is."""
        if self._lost:
            return
        call = {"call": None, "args": self._plain(value), "kwargs": None}
        self._add({**call, "told": said(value), "writes": False}, None)

    def reading(self) -> Reading:
        return Reading((), self._lost) if self._lost else Reading(tuple(_needed(self._steps)))

    def _add(self, step: dict[str, Any], found: Any) -> None:
        for at, tensor in enumerate(tensors_in(found)):
            self._made[id(tensor)] = tensor, {"made": [len(self._steps), at]}
        self._steps.append(step)

    def _plain(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return self._made[id(tree)][1]
        if isinstance(tree, (list, tuple)):
            return {type(tree).__name__: [self._plain(each) for each in tree]}
        if isinstance(tree, dict):
            return {"dict": {key: self._plain(each) for key, each in tree.items()}}
        if isinstance(tree, slice):
            return {"slice": [self._plain(each) for each in (tree.start, tree.stop, tree.step)]}
        if tree is Ellipsis:
            return {"ellipsis": None}
        if isinstance(tree, _BY_NAME):
            return {"torch": str(tree)}
        if type(tree) not in _PLAIN:
            raise _Unwritten
        # JSON has no word for these.
        return {"number": str(tree)} if isinstance(tree, float) and not math.isfinite(tree) else tree


def value_of(tensor: Tensor, copied: bool = True) -> Tensor:
    """What a tensor holds, on the CPU; copied where it may be written."""
    value = tensor.detach().cpu()
    return value.clone() if copied else value


def said(found: Any) -> str:
    """What was told, in words that differ where it does."""
    if isinstance(found, Tensor):
        return values_of(found)
    if isinstance(found, (list, tuple)):
        return f"[{', '.join(map(said, found))}]"
    if type(found) not in _PLAIN:
        raise _Unwritten
    return json.dumps(found)


def name_of(func: Any) -> str:
    """By which a function of PyTorch is found again."""
    if isinstance(func, torch._ops.OpOverload):
        return f"torch.ops.{func}"
    short = getattr(func, "__name__", "")
    known = torch.overrides.resolve_name(func)
    for name in (known, *(f"{home}.{short}" for home in ("torch.Tensor", "torch", "torch.nn.functional"))):
        if name and _found(name) == func:
            return str(name)
    raise _Unwritten


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _found(name: str) -> Any:
    first, *rest = name.split(".")
    found: Any = torch if first == "torch" else None
    for word in rest:
        found = getattr(found, word, None)
    return found


def _run(step: Mapping[str, Any], values: Sequence[Tensor], made: Sequence[Sequence[Tensor]]) -> Any:
    def real(data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        ((kind, held),) = data.items()
        if kind == "input":
            return values[held]
        if kind == "made":
            return made[held[0]][held[1]]
        if kind == "dict":
            return {key: real(each) for key, each in held.items()}
        if kind == "torch":
            return _named(held)
        if kind == "ellipsis":
            return ...
        if kind == "number":
            return float(held)
        parts = [real(each) for each in held]
        return slice(*parts) if kind == "slice" else parts if kind == "list" else tuple(parts)

    if step["call"] is None:
        return real(step["args"])
    return _found(step["call"])(*real(step["args"]), **real(step["kwargs"]))


def _named(name: str) -> Any:
    short = name.removeprefix("torch.")
    return getattr(torch, short) if name.startswith("torch.") else torch.device(short)


def _needed(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step once, and none of which nothing is told; all of them where some write."""
    if any(step["writes"] for step in steps):
        return steps
    first: dict[str, int] = {}
    same: dict[int, int] = {}
    for at, step in enumerate(steps):
        steps[at] = moved = _moved(step, same)
        same[at] = first.setdefault(json.dumps(moved), at)
    wanted: set[int] = set()
    for at in sorted(first.values(), reverse=True):
        if at in wanted or steps[at]["told"] is not None:
            wanted.update(_makers(steps[at]))
            wanted.add(at)
    places = {at: new for new, at in enumerate(sorted(wanted))}
    return [_moved(steps[at], places) for at in places]


def _makers(data: Any) -> list[int]:
    """The steps that made what one is given."""
    if isinstance(data, dict):
        return [data["made"][0]] if "made" in data else _makers(list(data.values()))
    return [at for each in data for at in _makers(each)] if isinstance(data, list) else []


def _moved(data: Any, places: Mapping[int, int]) -> Any:
    """A step where others stand at other places."""
    if isinstance(data, dict):
        if "made" in data:
            step, at = data["made"]
            return {"made": [places[step], at]}
        return {key: _moved(each, places) for key, each in data.items()}
    return [_moved(each, places) for each in data] if isinstance(data, list) else data
