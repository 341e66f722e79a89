"""Runs the text of a graph as it stands, one operator after the other, on whole tensors.

This is what the text means: capture is compared by it with the module. It knows nothing of parts.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...support import syntax_trees
from ..autocast import no_autocast
from ..graph_text import DTYPES

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_TYPED = re.compile(r"%(\w+) (\w+)\[")
_WORDS: dict[str, Any] = {"inf": math.inf, "nan": math.nan, **{word: dtype for dtype, word in DTYPES.items()}}

Watch = Callable[["Operator", Any], None]
Before = Callable[[list[Any]], None]


@dataclass(frozen=True)
class Operator:
    """An ``op`` line."""

    results: tuple[str | None, ...]
    target: Any
    args: tuple[ast.expr, ...]
    kwargs: tuple[tuple[str, ast.expr], ...]
    texts: tuple[str, ...]
    place: str
    no_grad: bool


@dataclass
class Given:
    """The value of every line that is not an operator's."""

    inputs: Sequence[Tensor]
    params: Callable[[str], Tensor]
    buffers: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]
    device: torch.device


@dataclass
class Evaluated:
    outputs: list[Tensor | None] = field(default_factory=list)
    updates: dict[str, Tensor] = field(default_factory=dict)
    """New values of buffers and parameters, by name."""


class Evaluator:
    """A graph's lines, read once. ``now`` is the operator that is being run."""

    def __init__(self, text: str):
        self.now: Operator | None = None
        self._lines = [line.partition(" ") for line in text.splitlines()[1:] if line]
        self._operators = {line: _operator(line) for kind, _, line in self._lines if kind == "op"}

    def run(self, given: Given, watch: Watch | None = None, before: Before | None = None) -> Evaluated:
        """``watch`` is told each operator with what it gave, ``before`` what each is given by position."""
        values: dict[str, Any] = {}
        evaluated = Evaluated()
        with no_autocast():
            for kind, _, line in self._lines:
                if kind == "op":
                    self._op(self._operators[line], values, given.device, watch, before)
                elif kind == "output":
                    evaluated.outputs.append(None if line == "none" else values[line[1:]])
                elif kind == "update":
                    name, end = json.JSONDecoder().raw_decode(line)
                    evaluated.updates[name] = values[line[end + 2 :]]
                elif kind in ("input", "param", "buffer", "const"):
                    typed, _, rest = line.partition("] ")
                    name, dtype = _TYPED.findall(typed)[0]
                    values[name] = _given(kind, rest, _WORDS[dtype], given)
        self.now = None
        return evaluated

    def _op(
        self,
        op: Operator,
        values: dict[str, Any],
        device: torch.device,
        watch: Watch | None,
        before: Before | None,
    ) -> None:
        self.now = op
        args = [_value(arg, op.texts, values) for arg in op.args]
        if before is not None:
            before(args)
        kwargs = {name: _value(arg, op.texts, values) for name, arg in op.kwargs}
        if _makes(op.target) and not any(isinstance(arg, Tensor) for arg in args):
            kwargs["device"] = device
        with torch.set_grad_enabled(torch.is_grad_enabled() and not op.no_grad):
            result = op.target(*args, **kwargs)
        several = result if isinstance(result, (tuple, list)) else (result,)
        values.update({name: value for name, value in zip(op.results, several, strict=True) if name})
        if watch is not None:
            watch(op, result)


def call_of(line: str, values: Mapping[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    """What an ``op`` line calls, and with which arguments."""
    op = _operator(line.removeprefix("op "))
    args = [_value(arg, op.texts, values) for arg in op.args]
    return op.target, args, {name: _value(arg, op.texts, values) for name, arg in op.kwargs}


def _given(kind: str, rest: str, dtype: torch.dtype, given: Given) -> Tensor:
    if kind == "input":
        return given.inputs[int(rest.split(" ")[0])]
    name, _ = json.JSONDecoder().raw_decode(rest)
    if kind == "param":
        return given.params(name).to(dtype)
    if kind == "buffer":
        return given.buffers[name]
    return given.constants[name].to(given.device)


def _operator(line: str) -> Operator:
    texts: list[str] = []

    def keep(match: re.Match[str]) -> str:
        texts.append(json.loads(match[0]))
        return f"S_{len(texts) - 1}"

    results, _, rest = _STRING.sub(keep, line).partition(" = ")
    called, _, where = rest.rpartition(" in S_")
    place = texts[int(where.partition(" at S_")[2].partition(" ")[0])]
    name, _, arguments = called.partition("(")
    tree = syntax_trees.expression("f(" + arguments.replace("%", "T_"))
    assert isinstance(tree, ast.Call)
    return Operator(
        results=tuple(_TYPED.findall(r + "[")[0][0] if r != "_" else None for r in results.split(", ")),
        target=_target(name),
        args=tuple(tree.args),
        kwargs=tuple((str(keyword.arg), keyword.value) for keyword in tree.keywords),
        texts=tuple(texts),
        place=place,
        no_grad=" nograd" in where,
    )


def _target(name: str) -> Any:
    space, operator, overload = name.rsplit(".", 2)
    return getattr(getattr(getattr(torch.ops, space), operator), overload)


def _makes(target: Any) -> bool:
    return any(argument.name == "device" for argument in target._schema.arguments)


def _value(node: ast.expr, texts: Sequence[str], values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return [_value(part, texts, values) for part in node.elts]
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, texts, values)
        case ast.Name(id=name) if name.startswith("T_"):
            return values[name[2:]]
        case ast.Name(id=name) if name.startswith("S_"):
            return texts[int(name[2:])]
        case ast.Name(id=name):
            return _WORDS[name]
    raise ValueError(f"no argument of a graph: {ast.dump(node)}")
