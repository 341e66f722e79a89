"""Plain functions of the model that are not traced, such as a loss that selects rows: operators, too.

Such a function stands at the top of a Python module, so that every rank finds it by its name. While it is
stood for, its code is another: whoever has imported it calls what stands for it.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from .. import lines

_FRAME = re.compile(r'File "([^"]*)", line \d+, in (\S+)')
_STANDS_IN = "__shardwright_stands_in_{}__"
# What calls modules while they are traced.
_CALLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "modules.py")
_WHERE = "shardwright_function"
E = TypeVar("E", bound=BaseException)


def function_at(error: BaseException) -> str | None:
    """The innermost one that an error arose in, inside of the innermost module."""
    frames = list(_frames(error))
    start = max((at for at, code in enumerate(frames) if code.co_filename == _CALLS), default=-1)
    names = (_name_of(code) for code in reversed(frames[start + 1 :]))
    return getattr(error, _WHERE, None) or next((name for name in names if name), None)


def said_of(stack_trace: str | None, error: E) -> E:
    """An error with the function whose line is noted, as `lines.trace_of_caller` does."""
    setattr(error, _WHERE, _of_trace(stack_trace))
    return error


def _of_trace(stack_trace: str | None) -> str | None:
    frame = _FRAME.search(stack_trace or "")
    if frame is None or not lines.is_models_file(frame[1]):
        return None
    for name, module in list(sys.modules.items()):
        # Some import themselves when they are asked for anything.
        if getattr(module, "__dict__", {}).get("__file__") == frame[1]:
            function = vars(module).get(frame[2])
            if isinstance(function, types.FunctionType) and function.__code__.co_filename == frame[1]:
                return _if_plain(f"{name}:{frame[2]}", function.__code__)
    return None


def _frames(error: BaseException) -> Iterator[types.CodeType]:
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    trace = root.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next


def _name_of(code: types.CodeType) -> str | None:
    return _of_trace(f'File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}')


def _if_plain(name: str, code: types.CodeType) -> str | None:
    return None if code.co_freevars else name


@contextmanager
def stood_for(
    function: types.FunctionType, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """`make` is given what it does, and makes what is called instead."""
    saved = function.__code__, function.__defaults__, function.__kwdefaults__
    original = types.FunctionType(saved[0], function.__globals__, function.__name__, saved[1])
    original.__kwdefaults__ = saved[2]
    stand_in = _STANDS_IN.format(function.__name__)
    function.__globals__[stand_in] = make(original)
    code = compile(f"lambda *args, **kwargs: {stand_in}(*args, **kwargs)", __file__, "eval").co_consts[0]
    try:
        function.__code__, function.__defaults__, function.__kwdefaults__ = code, None, None
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = saved
        del function.__globals__[stand_in]
