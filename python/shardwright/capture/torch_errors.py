"""What is said of PyTorch's errors while a model is captured; PyTorch itself is kept quiet."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from ..errors import CaptureError
from . import lines
from .state.hidden import kept_error
from .static_inputs.named import READS_DATA

_UNKNOWN_TYPE = re.compile(r"Found <class '([^']*)'> in output, which is not a known type")
_CHANGED_CONSTANT = re.compile(r"Constant (\S+) is mutated in the forward")
_OPERATOR = re.compile(r"\w+::\w+")
_LOGGERS = ("torch.fx", "torch._export", "torch.export", "torch._subclasses.fake_tensor")
_DATA_DEPENDENT = (
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
)


@contextmanager
def quiet() -> Iterator[None]:
    """PyTorch tells much that our own errors tell better."""
    # Each level that is set makes all loggers of the process ask anew: it is not set twice.
    loggers = [it for it in map(logging.getLogger, _LOGGERS) if it.level != logging.CRITICAL]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        printed = io.StringIO()
        try:
            with redirect_stderr(printed):
                yield
            sys.stderr.write(printed.getvalue())
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def refusal(error: Exception) -> CaptureError:
    """What is said of an error of PyTorch's, or of the model's, while it is captured."""
    place = lines.place_of_error(error)
    if any(kind.__name__ in _DATA_DEPENDENT for kind in type(error).__mro__):
        return data_dependent(place)
    first = str(error).strip().split("\n")[0]
    if unknown := _UNKNOWN_TYPE.search(first):
        return unknown_type(unknown[1])
    if changed := _CHANGED_CONSTANT.match(first):
        return kept_error(changed[1], place)
    fix = (
        "check that the model runs on these inputs; if it does, write this line with tensor"
        " operators that torch.export can trace"
    )
    if "no fake impl" in first and (operator := _OPERATOR.search(first)):
        fix = (
            f'register what its results look like, `torch.library.register_fake("{operator[0]}")`, and its'
            " backward with `register_autograd`; or put the call into a module of its own, which then runs"
            " as it is"
        )
    return CaptureError(
        "SW0101", "the model cannot be captured", place=place, why=lines.said_by(error), fix=fix
    )


def unknown_type(name: str) -> CaptureError:
    return CaptureError(
        "SW0108",
        f"the model returns a `{name.rpartition('.')[2]}`, whose tensors are not known",
        why="only tuples, lists, dicts, and classes that are registered with PyTorch are taken apart",
        fix="return one of those, or register the class once: for a dataclass"
        " `torch.export.register_dataclass(Class, serialized_type_name=...)`",
    )


def data_dependent(place: str | None) -> CaptureError:
    return CaptureError(
        "SW0102",
        READS_DATA,
        place=place,
        why="a branch, size or number taken from data would be baked into the program",
        fix="keep the value in a tensor (torch.where, masks), or pass it as a Python argument",
    )
