"""Checks that only validate: `assert` and `if ...: raise` on the values of tensors.

Whoever comes past such a check knows how it went, so tracing goes past it, and says that the program does
not make it.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from .. import lines
from ..random.certain import truth_of
from .jumps import jumps_of
from .selects import choosing, goes_both_ways

# Statements after which the model goes on as if nothing had been.
_SAYING = {"warn", "warning", "warning_once", "warn_once", "print", "info", "debug", "error"}


@contextmanager
def passing_checks(checked_lines: dict[str, None]) -> Iterator[None]:
    """While the model is traced; `checked_lines` gets the lines of the checks."""
    with (
        choosing(),
        mock.patch.object(torch.Tensor, "__bool__", _passing(torch.Tensor.__bool__, checked_lines)),
        mock.patch.object(torch.SymBool, "__bool__", _passing(torch.SymBool.__bool__, checked_lines)),
    ):
        yield


def _passing(original: Callable[[Any], bool], checked_lines: dict[str, None]) -> Callable[[Any], bool]:
    @functools.wraps(original)  # others know a function by its name
    def bool_of(value: Any) -> bool:
        try:
            return original(value)
        except Exception:
            frame = sys._getframe(1)
            if (truth := truth_of(value)) is not None:
                return truth
            passes = _what_passes(frame) if lines.may_check(frame) else None
            if passes is not None:
                checked_lines[lines.short(lines.trace_of_caller(frame))] = None
                return passes
            enters = goes_both_ways(value, frame) if lines.is_the_models(frame) else None
            if enters is None:
                raise
            return enters

    return bool_of


def _what_passes(frame: types.FrameType) -> bool | None:
    """The value with which the model comes past the check that it makes there, if it is one."""
    code, at = frame.f_code, frame.f_lasti
    check = next((c for c in _checks(code.co_filename) if c.first <= frame.f_lineno <= c.last), None)
    jumps = jumps_of(code)
    if check is None or at not in jumps:
        return None
    jump = jumps[at]
    fails = [value for value, target in jump.items() if check.is_failed_at(*target)]
    return not fails[0] if len(fails) == 1 else None if fails else False


@dataclass(frozen=True)
class _Check:
    """The lines of its test, and those of what is done if it fails: of an `assert` none."""

    first: int
    last: int
    failed: range

    def is_failed_at(self, line: int | None, operation: str) -> bool:
        return line in self.failed if self.failed else operation in _OF_ASSERT


_OF_ASSERT = ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT")


@functools.cache
def _checks(file: str) -> list[_Check]:
    """Of a file those that only validate."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    checks: list[_Check] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            checks.append(_Check(node.lineno, _end(node.test), range(0)))
        elif isinstance(node, ast.If) and not node.orelse and all(map(_only_says, node.body)):
            failed = range(node.body[0].lineno, _end(node.body[-1]) + 1)
            checks.append(_Check(node.lineno, _end(node.test), failed))
    return checks


def _end(node: ast.expr | ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _is_error(raised: ast.expr | None) -> bool:
    """By its name: others may be how a forward ends early."""
    kind = raised.func if isinstance(raised, ast.Call) else raised
    name = kind.attr if isinstance(kind, ast.Attribute) else getattr(kind, "id", "")
    return name.endswith("Error")


def _only_says(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return _is_error(statement.exc)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in _SAYING
