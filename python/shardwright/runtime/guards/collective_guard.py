"""Collectives by hand over parameters and gradients of which each rank has its own: refused.

A `broadcast` of parameters, or an `all_reduce` of gradients, is how data parallel loops begin and end a step.
Over parts it mixes values that belong to different places of the model. Whoever only reads a part, such as by
`all_gather`, may do so, and what all ranks hold alike may be sent around.

All of torch.distributed's functions first ask one of two helpers about the type of what they are given, also
those that were imported long before; these ask here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist

from ...errors import RuntimeFault
from .own_memory import own_parts_among

HELPERS = ("_check_single_tensor", "_check_tensor_list")
# In C++, by the name under which PyTorch's own Python code looks for it at each use.
COALESCED = "_broadcast_coalesced"
# What these are given under some names they only read.
_READING = {
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_coalesced", "gather",
    "gather_single", "send", "isend", "__new__",
}  # fmt: skip
_READ = {"tensor", "input_tensor", "input_tensor_list"}
# Who calls is behind these: the last is asked about each function that is given a part of a gradient.
_BETWEEN = ("torch.distributed.", "torch.overrides", "shardwright.runtime.guards.part_gradients")


def refuse_mixing() -> None:
    """From now on."""
    if dist.is_available():
        for name in HELPERS:
            replace(dist.distributed_c10d, name, _communicates)
        replace(dist, COALESCED, _broadcasts)


def replace(module: Any, name: str, watching: Callable[..., Any]) -> None:
    """By a function that is given the original before all else; once."""
    original = getattr(module, name)
    if not hasattr(original, "shardwright"):
        made = functools.partial(watching, original)
        made.shardwright = True  # type: ignore[attr-defined]
        setattr(module, name, made)


def _communicates(original: Callable[..., Any], given: Any, name: str) -> Any:
    value = original(given, name)
    frame = sys._getframe(1)
    function = frame.f_code.co_name
    if not (function in _READING and name in _READ) and not _is_own(frame):
        _refuse_parts(given if isinstance(given, list) else [given], function)
    return value


def _broadcasts(original: Callable[..., Any], group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    _refuse_parts(tensors, "broadcast")
    return original(group, tensors, *args, **kwargs)


def _is_own(frame: Any) -> bool:
    """Whether the function was called by this package, which knows what it sends."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("shardwright.")


def _refuse_parts(tensors: Iterable[Any], function: str) -> None:
    for part in own_parts_among(tensors):
        raise RuntimeFault(
            "SW0816",
            f"`{function}` is given this rank's part of a parallel model: {part}",
            why="the plan shards the model: under this name other ranks hold another part of it",
            fix="leave it out: all ranks start with one model, and backward reduces gradients by the plan",
        )
