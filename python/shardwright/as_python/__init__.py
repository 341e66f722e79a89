"""Operators that run as the Python they were: custom autograd Functions, functions that read values, and
modules that stay as they are.

`torch.ops.shardwright.function` and `.module` stand in captured graphs and run there and in emitted
programs, differentiably. How each is called is a text in Python's own notation, with `T0`, `T1`... for
tensors and what comes out behind an arrow: `(T0, scale=0.5) -> float32[4,8]`.
"""

from __future__ import annotations

from .calls import NotPlain, read, results_written, written
from .depth import inside, is_inside
from .functions import called, name_of, named
from .modules import MARK, Marked, Modules, mark_of, opaque, running, tensors_of
from .registry import Registered, all_registered, library_name, register_op, registered_as

__all__ = [
    "MARK",
    "Marked",
    "Modules",
    "NotPlain",
    "Registered",
    "all_registered",
    "called",
    "inside",
    "is_inside",
    "library_name",
    "mark_of",
    "name_of",
    "named",
    "opaque",
    "read",
    "register_op",
    "registered_as",
    "results_written",
    "running",
    "tensors_of",
    "written",
]
