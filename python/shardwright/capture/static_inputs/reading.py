"""What a model reads in Python of inputs that are known: a program is for this, whatever else they hold.

While the model is traced, a `Tape` notes what is computed of them beside the trace, and what of that is told
to Python. It is played again on the inputs of another call, which is the same program's if it tells the same.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .named import values_of

# Plain data in a step: tensors by who made them, and what JSON has no word for by its name.
_BY_NAME = (torch.dtype, torch.device, torch.memory_format, torch.layout)
_PLAIN = (bool, int, float, str, type(None))
# In the place of who made a tensor: it follows from what was told before.
_FIXED = object()
# Characters of what is told; of many numbers a digest is.
_FEW = 512
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


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
    def results(self) -> tuple[str, ...]:
        """What the program is for."""
        return tuple(step["told"] for step in self.steps if step["told"] is not None)

    def read(self, inputs: Sequence[Tensor]) -> tuple[str, ...]:
        """What the model would read of these, up to the first that differs: what follows may not even have a
        meaning for them."""
        results: list[str] = []
        made: list[list[Tensor]] = []
        with torch.no_grad():
            values = [value_of(tensor, copied=self._writes) for tensor in inputs]
            for step in self.steps:
                try:
                    result = _run(step, values, made)
                except Exception as error:
                    return (*results, type(error).__name__)
                made.append(tensors_in(result))
                if step["told"] is not None:
                    results.append(said(result))
                    if results[-1] != step["told"]:
                        break
        return tuple(results)

    @property
    def is_much(self) -> bool:
        """Whether what is told is more than a few numbers."""
        return sum(map(len, self.results)) > _FEW or any(_DIGEST.search(one) for one in self.results)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The positions of those that the steps begin with: nothing is read of the others."""
        return tuple(sorted(_inputs_in(list(self.steps))))

    def of_its_inputs(self) -> Reading:
        """The same, where it is given no others."""
        places = {at: new for new, at in enumerate(self.inputs)}
        return Reading(tuple(_with_inputs(step, places) for step in self.steps))

    @cached_property
    def _writes(self) -> bool:
        return any(step["writes"] for step in self.steps)


class Tape:
    """Notes what is computed of some values. Of a call that cannot be written down, what it is given is told:
    from there on its results are fixed. Where that does not do, it is lost what is read."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Any]] = []
        # Of each step, the memory that it reads, and that it writes.
        self._memory: list[tuple[set[int], set[int]]] = []
        # With the values, so that an id stays that of one.
        self._made: dict[int, tuple[Tensor, Any]] = {}
        self._has_fixed = False
        self._lost = ""

    def begin(self, value: Tensor, position: int) -> None:
        """The value of an input."""
        self._made[id(value)] = value, {"input": position}

    def note(
        self, func: Any, args: Any, kwargs: Any, result: Any, *, is_read: bool, writes: Sequence[Tensor] = ()
    ) -> None:
        """A call that is made of values, and `writes` some."""
        if self._lost:
            return
        try:
            if writes and self._has_fixed:
                raise _Unwritten  # it may write what is fixed
            call = {"call": name_of(func), "args": self._plain(args), "kwargs": self._plain(kwargs)}
            step = {**call, "told": said(result) if is_read else None, "writes": bool(writes)}
            self._add(step, tensors_in((args, kwargs)), writes, result)
        except _Unwritten:
            self._fix(str(getattr(func, "__name__", func)), tensors_in((args, kwargs)), result, bool(writes))

    def _fix(self, call: str, given: Sequence[Tensor], result: Any, writes: bool) -> None:
        """Of floats a program would be for exactly these."""
        new = [value for value in given if self._made[id(value)][1] is not _FIXED]
        if writes or any(value.is_floating_point() or value.is_complex() for value in new):
            self._lost = call
            return
        for value in new:
            self.tell(value)
        for tensor in tensors_in(result):
            self._made[id(tensor)] = tensor, _FIXED
        self._has_fixed = True

    def tell(self, value: Tensor) -> None:
        """A value that is given to Python as it is."""
        if self._lost or self._made[id(value)][1] is _FIXED:
            return
        call = {"call": None, "args": self._plain(value), "kwargs": None}
        self._add({**call, "told": said(value), "writes": False}, [value], (), None)

    def reading(self) -> Reading:
        if self._lost:
            return Reading((), self._lost)
        kept = _kept(self._steps, self._wanted())
        return Reading(tuple(kept if any(step["writes"] for step in kept) else _once(kept)))

    def _wanted(self) -> set[int]:
        """The steps of which something is told, and those that make or write what these are given."""
        wanted: set[int] = set()
        read: set[int] = set()
        for at in reversed(range(len(self._steps))):
            step, (reads, writes) = self._steps[at], self._memory[at]
            if at in wanted or step["told"] is not None or writes & read:
                wanted |= {at, *_makers(step)}
                read |= reads
        return wanted

    def _add(
        self, step: dict[str, Any], given: Sequence[Tensor], writes: Sequence[Tensor], result: Any
    ) -> None:
        self._memory.append((set(map(memory_of, given)), set(map(memory_of, writes))))
        for at, tensor in enumerate(tensors_in(result)):
            self._made[id(tensor)] = tensor, {"made": [len(self._steps), at]}
        self._steps.append(step)

    def _plain(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            made = self._made[id(tree)][1]
            if made is _FIXED:
                raise _Unwritten
            return made
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
        tree = _number_of(tree)
        if type(tree) not in _PLAIN:
            raise _Unwritten
        # JSON has no word for these.
        return {"number": str(tree)} if isinstance(tree, float) and not math.isfinite(tree) else tree


def value_of(tensor: Tensor, copied: bool = True) -> Tensor:
    """What a tensor holds, on the CPU; copied where it may be written."""
    value = tensor.detach().cpu()
    return value.clone() if copied else value


def memory_of(value: Tensor) -> int:
    """The same for values that lie in the same memory."""
    return value.untyped_storage()._cdata


def said(result: Any) -> str:
    """What was told, in words that differ where it does."""
    if isinstance(result, Tensor):
        return values_of(result)
    if isinstance(result, (list, tuple)):
        return f"[{', '.join(map(said, result))}]"
    if type(result) not in _PLAIN:
        raise _Unwritten
    return json.dumps(result)


def _number_of(value: Any) -> Any:
    """Of NumPy's integers, which PyTorch takes as Python's."""
    is_count = type(value).__module__ == "numpy" and getattr(value, "dtype", None) is not None
    return value.item() if is_count and value.dtype.kind in "biu" and not value.shape else value


def name_of(func: Any) -> str:
    """By which a function of PyTorch is found again."""
    if isinstance(func, torch._ops.OpOverload):
        return f"torch.ops.{func}"
    short = getattr(func, "__name__", "")
    known = torch.overrides.resolve_name(func)
    for name in (known, *(f"{home}.{short}" for home in ("torch.Tensor", "torch", "torch.nn.functional"))):
        if name and _is(_found(name), func):
            return str(name)
    raise _Unwritten


def _is(registered: Any, func: Any) -> bool:
    """While a model is traced, a function of ours may stand in the place of PyTorch's."""
    return bool(registered == func) or getattr(registered, "__wrapped__", None) is func


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _found(name: str) -> Any:
    first, *rest = name.split(".")
    value: Any = torch if first == "torch" else None
    for word in rest:
        value = getattr(value, word, None)
    return value


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


def _kept(steps: Sequence[dict[str, Any]], wanted: set[int]) -> list[dict[str, Any]]:
    """Some of the steps, which stand at other places then."""
    places = {at: new for new, at in enumerate(sorted(wanted))}
    return [_moved(steps[at], places) for at in places]


def _once(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step once, where none writes."""
    first: dict[str, int] = {}
    same: dict[int, int] = {}
    for at, step in enumerate(steps):
        steps[at] = moved = _moved(step, same)
        same[at] = first.setdefault(json.dumps(moved), at)
    return _kept(steps, set(first.values()))


def _inputs_in(data: Any) -> set[int]:
    """Those that a step is given, at any depth."""
    if isinstance(data, dict):
        return {data["input"]} if "input" in data else _inputs_in(list(data.values()))
    return set().union(*map(_inputs_in, data)) if isinstance(data, list) else set()


def _with_inputs(data: Any, places: Mapping[int, int]) -> Any:
    """A step where inputs have other positions."""
    if isinstance(data, dict):
        if "input" in data:
            return {"input": places[data["input"]]}
        return {key: _with_inputs(each, places) for key, each in data.items()}
    return [_with_inputs(each, places) for each in data] if isinstance(data, list) else data


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
