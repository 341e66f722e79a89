"""Branches on the values of tensors that a tensor can choose, such as a clamp of what has overflowed:

    if not torch.isfinite(x).all():
        limit = torch.finfo(x.dtype).max - 1000
        x = torch.clamp(x, min=-limit, max=limit)

Tracing goes into the branch, and the condition chooses between what `x` was and is: the program goes both
ways, as the values say. Only where that is the same for gradients: what is not chosen gets zeros of these,
and the operators here make zeros of zeros, whatever numbers they were given.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ...errors import CaptureError
from .. import lines
from ..static_inputs.named import READS_DATA
from .jumps import jumps_of

# Of these the gradient is that of the result, or zero.
_CHOOSABLE = ("clamp", "clip", "masked_fill", "nan_to_num")
# What may be called for a number.
_OF_NUMBERS = ("finfo", "iinfo", "float", "int", "max", "min")


@contextmanager
def choosing() -> Iterator[None]:
    """While a model is traced."""
    pending = list[_Pending]()
    with ExitStack() as stack:
        for home in (torch, Tensor):
            for name in _CHOOSABLE:
                stand_in = _choosing(getattr(home, name), pending)
                stack.enter_context(mock.patch.object(home, name, stand_in))
        token = _PENDING.set(pending)
        try:
            yield
        finally:
            _PENDING.reset(token)
    for one in pending:
        raise one.refusal()


def goes_both_ways(condition: Any, frame: types.FrameType) -> bool | None:
    """The truth with which the model goes into a branch, if what that makes is chosen afterwards."""
    branch = next((b for b in _branches(frame.f_code.co_filename) if frame.f_lineno in b.test), None)
    jump = jumps_of(frame.f_code).get(frame.f_lasti)
    if branch is None or jump is None or not _is_condition(condition):
        return None
    enters = [truth for truth, (line, _) in jump.items() if line in branch.body]
    # What leads to another part of the test is not the whole condition.
    inside = [line for line, _ in jump.values() if line in branch.test]
    before = frame.f_locals.get(branch.name)
    if len(enters) != 1 or inside or not isinstance(before, Tensor):
        return None
    place = lines.with_source(lines.trace_of_caller(frame))
    _PENDING.get().append(_Pending(frame, branch, condition.reshape(()), before, enters[0], place))
    return enters[0]


def _is_condition(one: Any) -> bool:
    return isinstance(one, Tensor) and one.dtype == torch.bool and one.numel() == 1


@dataclass(eq=False)
class _Pending:
    """A branch that was gone into, up to the call that ends it."""

    frame: types.FrameType
    branch: _Branch
    condition: Tensor
    before: Tensor
    enters: bool
    place: str | None

    def ends_at(self, frame: types.FrameType, args: Any) -> bool:
        here = frame is self.frame and frame.f_lineno in self.branch.call
        return here and bool(args) and args[0] is self.before

    def chosen(self, made: Tensor) -> Tensor:
        if made.shape != self.before.shape or made.dtype != self.before.dtype:
            raise self.refusal()
        new, old = (made, self.before) if self.enters else (self.before, made)
        return torch.where(self.condition, new, old)

    def refusal(self) -> CaptureError:
        return CaptureError(
            "SW0102",
            READS_DATA,
            place=self.place,
            why="the results of its branches cannot be selected by a tensor",
            fix="keep the value in a tensor (torch.where, masks), or pass it as a Python argument",
        )


_PENDING: ContextVar[list[_Pending]] = ContextVar("branches that were gone into")


def _choosing(original: Callable[..., Tensor], pending: list[_Pending]) -> Callable[..., Tensor]:
    @functools.wraps(original)  # others know a function by its name
    def call(*args: Any, **kwargs: Any) -> Tensor:
        frame = sys._getframe(1)
        one = next((one for one in pending if one.ends_at(frame, args)), None)
        made = original(*args, **kwargs)
        if one is None:
            return made
        pending.remove(one)
        return one.chosen(made)

    return call


@dataclass(frozen=True)
class _Branch:
    """`if test:` and its body, which ends with `name = call(name, ...)`. All are lines."""

    test: range
    body: range
    call: range
    name: str


@functools.cache
def _branches(file: str) -> list[_Branch]:
    """Of a file those that a tensor may choose."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [branch for function in functions for branch in _branches_of(function)]


def _branches_of(function: ast.FunctionDef) -> Iterator[_Branch]:
    inner = [node for node in ast.walk(function) if isinstance(node, (ast.Global, ast.Nonlocal))]
    choosable = [node for node in ast.walk(function) if isinstance(node, ast.If) and _is_choosable(node)]
    for node in choosable if not inner else ():
        numbers = {name for statement in node.body[:-1] for name in _assigned(statement)}
        if not any(_is_read_outside(function, name, choosable) for name in numbers):
            call: Any = node.body[-1]
            yield _Branch(_lines(node.test), _lines(*node.body), _lines(call), call.targets[0].id)


def _is_choosable(node: ast.If) -> bool:
    *numbers, last = node.body
    if node.orelse or _lines(node.test)[-1] >= node.body[0].lineno:
        return False
    return all(map(_is_number, numbers)) and _is_call(last)


def _is_number(statement: ast.stmt) -> bool:
    """A name for what is computed of numbers, and of what tensors are."""
    if not isinstance(statement, ast.Assign) or not all(isinstance(t, ast.Name) for t in statement.targets):
        return False
    parts = list(ast.walk(statement.value))
    calls = [part for part in parts if isinstance(part, ast.Call)]
    plain = all(isinstance(part, (*_PLAIN, ast.expr_context, ast.operator, ast.unaryop)) for part in parts)
    return plain and all(_name_of(call.func) in _OF_NUMBERS for call in calls)


_PLAIN = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Call)


def _is_call(statement: ast.stmt) -> bool:
    """`x = torch.clamp(x, ...)` or `x = x.clamp(...)`, with no other call in it."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    target, call = statement.targets[0], statement.value
    alone = len(statement.targets) == 1 and isinstance(target, ast.Name)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    simple = not any(isinstance(part, _NOT_SIMPLE) for one in given for part in ast.walk(one))
    if not alone or not simple or _name_of(call.func) not in _CHOOSABLE:
        return False
    receiver = call.func.value  # type: ignore[attr-defined]
    first = (
        call.args[0] if isinstance(receiver, ast.Name) and receiver.id == "torch" and call.args else receiver
    )
    return isinstance(first, ast.Name) and first.id == target.id  # type: ignore[attr-defined]


_NOT_SIMPLE = (ast.Call, ast.NamedExpr, ast.Starred, ast.Await, ast.Yield, ast.YieldFrom)


def _name_of(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _assigned(statement: ast.stmt) -> list[str]:
    names = [part for part in ast.walk(statement) if isinstance(part, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def _is_read_outside(function: ast.FunctionDef, name: str, branches: list[ast.If]) -> bool:
    """Whether a name that only a branch gives a value to is read where none has done so."""
    gives = [
        _lines(*node.body)
        for node in branches
        if any(name in _assigned(statement) for statement in node.body[:-1])
    ]
    parts = (part for part in ast.walk(function) if isinstance(part, ast.Name) and part.id == name)
    reads = [part.lineno for part in parts if isinstance(part.ctx, ast.Load)]
    return not all(any(line in body for body in gives) for line in reads)


def _lines(*nodes: ast.expr | ast.stmt) -> range:
    return range(nodes[0].lineno, (nodes[-1].end_lineno or nodes[-1].lineno) + 1)
