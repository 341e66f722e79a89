"""The model's own source line, the same on every machine, and the module that an error arose in."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
import types
from typing import TypeVar

import torch
from torch import fx

from ..support.short_paths import INSTALLED, NOTEBOOK, short_path

E = TypeVar("E", bound=BaseException)
_WHERE = "shardwright_module"
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The files of the package that are models.
_MODELS = (_OURS + "demo.py", os.path.join(_OURS, "shipped", "evoformer.py"))
_STDLIB = os.path.join(sysconfig.get_paths()["stdlib"], "")
_FRAME = re.compile(r'File "([^"]*)", line (\d+)')
# Where PyTorch looks at what it is given.
_CHECKING = (os.path.join(_TORCH, "nn", ""), os.path.join(_TORCH, "distributions", ""))
# What the model is given in the place of PyTorch's own functions while it is traced.
_STANDS_IN = tuple(
    os.path.join(_OURS, *path.split("/")) + ".py"
    for path in (
        "as_python/depth",
        "as_python/functions",
        "as_python/modules",
        "capture/autocast",
        "capture/control_flow/selects",
        "capture/dispatch",
        "capture/guard",
        "capture/opaque/calling",
        "capture/opaque/functions",
        "capture/opaque/losses",
        "capture/opaque/modules",
        "capture/opaque/plain",
        "capture/opaque/rules",
        "capture/opaque/selected",
        "capture/state/memory",
        "capture/state/registered",
        "capture/state/swap",
        "library",
        "losses",
        "mixtures",
    )
)
# What PyTorch calls in the place of an operator stands between the operator and the model's line.
_BETWEEN = ("__torch_function__", "__torch_dispatch__")
_ANONYMOUS = re.compile(r", in <(?!module>)")


def trace_of_caller(frame: types.FrameType | None) -> str:
    """The model's innermost frame at or above ``frame``, as one frame of a traceback.

    Without one (the module is made of PyTorch's own modules only) the innermost frame of PyTorch.
    """
    inside = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_code.co_name in _BETWEEN or file in _STANDS_IN:
            frame = frame.f_back
            continue
        if _is_ours(file):
            break
        if _is_models(file):
            return _trace(file, frame.f_lineno, frame.f_code.co_name)
        if not inside and file.startswith(os.path.join(_TORCH, "nn", "modules")):
            inside = _trace(file, 0, frame.f_code.co_name)
        frame = frame.f_back
    return inside


def is_the_models(frame: types.FrameType) -> bool:
    """Whether a line of the model itself runs in a frame, and not of PyTorch or of this package."""
    return is_models_file(frame.f_code.co_filename)


def may_check(frame: types.FrameType) -> bool:
    """Whether a line of the model runs in a frame, or one of PyTorch's modules, losses and distributions."""
    return is_the_models(frame) or frame.f_code.co_filename.startswith(_CHECKING)


def is_models_file(file: str) -> bool:
    return _is_models(file) and not _is_ours(file)


def short(stack_trace: str | None) -> str:
    """``model.py:56`` from a trace that :func:`trace_of_caller` made; empty if there is none."""
    frame = _FRAME.search(stack_trace or "")
    if frame is None:
        return ""
    line = int(frame[2])
    return f"{short_path(frame[1])}:{line}" if line else short_path(frame[1])


def position(stack_trace: str | None) -> tuple[str, int] | None:
    """The file and line of a statement, from a trace that :func:`trace_of_caller` made; none for what a
    lambda or a comprehension runs, which only stands on the line of a statement."""
    frame = _FRAME.search(stack_trace or "")
    if frame is None or not int(frame[2]) or _ANONYMOUS.search(stack_trace or ""):
        return None
    return frame[1], int(frame[2])


def with_source(stack_trace: str | None) -> str | None:
    """``model.py:56: the source text``, for an error."""
    frame = _FRAME.search(stack_trace or "")
    if frame is None:
        return None
    source = linecache.getline(frame[1], int(frame[2])).strip()
    return short(stack_trace) + (f": {source}" if source else "")


def place_of_error(error: BaseException) -> str | None:
    """The model's innermost line that an exception passed through."""
    trace, place = error.__traceback__, None
    while trace is not None:
        file, name = trace.tb_frame.f_code.co_filename, trace.tb_frame.f_code.co_name
        if name not in _BETWEEN and not _is_ours(file) and _is_models(file):
            place = _trace(file, trace.tb_lineno, name)
        trace = trace.tb_next
    return with_source(place)


def said_by(error: BaseException) -> str:
    """Its class, and the first line of its text if it has one."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) and file not in _MODELS


def _is_models(file: str) -> bool:
    if NOTEBOOK.search(file):
        return True
    if file.startswith(("<", _TORCH)):
        return False
    if any(f"{os.sep}{folder}{os.sep}" in file for folder in INSTALLED):
        return True
    return not file.startswith(_STDLIB)


def _trace(file: str, line: int, function: str) -> str:
    return f'File "{file}", line {line}, in {function}'


# ---- in which module of the model an error arose ------------------------------------------------


def said_in(path: str | None, error: E) -> E:
    """An error with that module; none is the model itself."""
    setattr(error, _WHERE, path)
    return error


def place_in(error: BaseException) -> str | None:
    return getattr(error, _WHERE, None)


def is_placed(error: BaseException) -> bool:
    """Whether it is known where an error arose, be it in the model itself."""
    return hasattr(error, _WHERE)


def module_of(node: fx.Node) -> str | None:
    """The innermost one that a node stands in, if it is not the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((path for path, _ in reversed(stack.values())), None) or None
