"""The operators of a model, each with a call that is an example."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from .. import as_python
from .._core import Graph, Operator
from ..capture.graph_text import DTYPES
from ..capture.verify.interpreter import call_of
from .subject import MOST

_FUNCTION = torch.ops.shardwright.function.default
_TYPED = re.compile(r"%(\w+) (\w+)\[([\d,]*)\]")
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAMED = {word: dtype for dtype, word in DTYPES.items()}


@dataclass
class Example:
    operator: Operator
    function: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]


def has_no_rule(operator: Operator) -> bool:
    return operator.rule is None


def examples(
    graph: Graph, wanted: Callable[[Operator], bool], values: Callable[[str], Tensor] | None = None
) -> Iterator[Example]:
    """Once for each function, shapes and arguments. Without values, by the names of tensors, random ones."""
    lines = [line for line in graph.text.splitlines() if line.startswith("op ")]
    calls = {typed[1]: line for line in lines if (typed := _TYPED.search(line))}
    known = {name: typed for name, *typed in _TYPED.findall(_STRINGS.sub("", graph.text))}
    seen: set[str] = set()
    for operator in graph.operators:
        line = calls.get(operator.name)
        if line is None or not wanted(operator):
            continue
        arguments = line.rpartition(' at "')[0].rpartition(' in "')[0].partition(" = ")[2]
        key = f"{operator.shapes} {re.sub(r'%[a-z0-9_]+', '%', arguments)}"
        if key not in seen:
            seen.add(key)
            names = re.findall(r"%(\w+)", _STRINGS.sub("", arguments))
            tensors = {name: values(name) if values else _tensor(*known[name]) for name in names}
            yield Example(operator, *_called(*call_of(line, tensors)))


def _called(
    target: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Any, Sequence[Any], dict[str, Any]]:
    """Of a function that runs as the Python it is, that itself."""
    if target is not _FUNCTION:
        return target, args, kwargs
    name, tensors, text, *_ = args
    args, kwargs = as_python.read(text, tensors)
    return as_python.named(name), args, kwargs


def _tensor(kind: str, shape: str) -> Tensor:
    """Random numbers, ints and bools nought or one; without values where they are too many to be tried."""
    sizes = [int(size) for size in shape.split(",") if size]
    dtype = _NAMED[kind]
    if prod(sizes) > MOST:
        return torch.empty(sizes, dtype=dtype, device="meta")
    drawn = torch.rand(sizes, generator=torch.Generator().manual_seed(0))
    return (drawn if dtype.is_floating_point else drawn < 0.5).to(dtype)
