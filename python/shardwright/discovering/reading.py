"""What a function reads of its tensors' values, and whether that was put to the test.

A branch on a value of the whole batch may go the same way for all random numbers, and another one for a part
of a real batch. So each line that reads a value which depends on what is divided has to be seen reading
another one in a part than in the whole; where a bool is never seen so, a part is made to go the other way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..capture.lines import is_models_file
from ..support.short_paths import short_path

_READS = {"item", "__bool__", "__int__", "__float__", "__index__", "__contains__", "tolist", "numpy"}
_READS |= {"equal", "allclose", "is_nonzero"}
_IN_PLACE = {
    "__setitem__",
    "__iadd__",
    "__isub__",
    "__imul__",
    "__itruediv__",
    "__iand__",
    "__ior__",
    "__ixor__",
}

# What is computed of a number that a line reads is another one each time, and a branch on it may not be.
NUMBER = "#"
Forced = tuple[str, int]
"""A line, and which of its reads goes the other way."""


class Reads(TorchFunctionMode):
    """Notes what lines read of tensors that depend on more than `whole`, which every part has."""

    def __init__(self, whole: Sequence[Tensor], forced: Forced | None = None) -> None:
        super().__init__()
        self.reads: dict[str, list[Any]] = {}
        self._forced = forced
        self._clean = {id(tensor): tensor for tensor in whole}
        self._dirty: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        clean = all(map(self._is_clean, tensors))
        name = getattr(func, "__name__", "")
        if name in _READS:
            return result if clean else self._read(result)
        if clean:
            self._clean |= {id(leaf): leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)}
        elif name in _IN_PLACE or (name.endswith("_") and not name.startswith("_")):
            self._dirty.add(_memory(tensors[0]))
        return result

    def _is_clean(self, tensor: Tensor) -> bool:
        return id(tensor) in self._clean and _memory(tensor) not in self._dirty

    def _read(self, result: Any) -> Any:
        if type(result) in (int, float):
            self.note(result, NUMBER)
            # What is decided by it is decided in Python.
            return _NUMBERS[type(result)](result, self)
        return self.note(result)

    def note(self, result: Any, kind: str = "") -> Any:
        line = _line() + kind
        results = self.reads.setdefault(line, [])
        if self._forced == (line, len(results)) and isinstance(result, bool):
            result = not result
        results.append(result)
        return result


class Counting(TorchFunctionMode):
    """Counts what is called of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class _Number:
    """A number that was read, and those that are computed of it: how they compare is noted."""

    reads: Reads


def _class(base: type) -> Callable[[Any, Reads], Any]:
    def make(value: Any, reads: Reads) -> Any:
        number = kind(value)
        number.reads = reads
        return number

    def compares(name: str) -> Callable[[Any, Any], Any]:
        def compare(self: Any, other: Any) -> Any:
            result = getattr(base, name)(self, other)
            return self.reads.note(result) if isinstance(result, bool) else result

        return compare

    def computes(name: str) -> Callable[..., Any]:
        def compute(self: Any, *others: Any) -> Any:
            result = getattr(base, name)(self, *others)
            return _NUMBERS[type(result)](result, self.reads) if type(result) in _NUMBERS else result

        return compute

    kind: Any = type(f"Read{base.__name__}", (base, _Number), {})
    for name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
        setattr(kind, name, compares(name))
    for name in _COMPUTES:
        if hasattr(base, name):
            setattr(kind, name, computes(name))
    kind.__hash__ = base.__hash__
    kind.__bool__ = lambda self: self.reads.note(base(self) != 0)
    return make


_COMPUTES = [
    f"__{side}{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
    for side in ("", "r")
] + ["__neg__", "__abs__", "__int__", "__float__", "__ceil__", "__floor__", "__round__", "__trunc__"]
_NUMBERS: dict[type, Callable[[Any, Reads], Any]] = {base: _class(base) for base in (int, float)}


def untested(wholes: Sequence[Reads], parts: Sequence[Sequence[Reads]]) -> dict[str, list[Any]]:
    """The lines that read the same in all parts as in the whole, with what they read last."""
    untried: dict[str, list[Any]] = {}
    tested: set[str] = set()
    for whole, of_parts in zip(wholes, parts, strict=True):
        for line in {*whole.reads, *(line for part in of_parts for line in part.reads)}:
            reads = whole.reads.get(line, [])
            untried[line] = reads or next(part.reads[line] for part in of_parts if line in part.reads)
            if _varies(reads) or any(_all(part.reads.get(line, [])) != _all(reads) for part in of_parts):
                tested.add(line)
    return {line: reads for line, reads in sorted(untried.items()) if line not in tested}


def ways(untested: Mapping[str, list[Any]]) -> Iterator[Forced]:
    """Reads that may go the other way: the first and the middle one of each line."""
    for line, reads in untested.items():
        yield from ((line, at) for at in sorted({0, len(reads) // 2}))


def is_choice(reads: Sequence[Any]) -> bool:
    return all(isinstance(read, bool) for read in reads)


def _varies(reads: Sequence[Any]) -> bool:
    """Lists of several values, of which parts have some each."""
    return any(isinstance(read, tuple) and len(read) > 1 for read in map(_plain, reads))


def _plain(read: Any) -> Any:
    """Of lists the values that they hold: a part's have fewer places."""
    read = read.tolist() if hasattr(read, "tolist") else read
    return tuple(sorted(set(pytree.tree_leaves(read)))) if isinstance(read, list) else read


def _all(reads: Sequence[Any]) -> list[Any]:
    return [_plain(read) for read in reads]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def _line() -> str:
    frame: Any = sys._getframe(2)
    while frame.f_back is not None and not is_models_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
