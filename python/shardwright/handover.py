"""Rank 0 makes something, all ranks have it."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import RuntimeFault, ShardwrightError
from .runtime import Comm

Made = TypeVar("Made")


def from_rank_0(comm: Comm, make: Callable[[], Made]) -> Made:
    """What rank 0 makes, handed to the others; its error reaches all of them."""
    if comm.world == 1:
        return make()
    if comm.rank != 0:
        return _opened(comm.hand(None))
    try:
        made = make()
        payload = _pickled(made)
    except ShardwrightError as error:
        error.everywhere = True
        comm.hand(pickle.dumps(error))
        raise
    except BaseException as error:
        comm.hand(pickle.dumps(_failed(error)))
        raise
    comm.hand(payload)
    return made


def _opened(payload: bytes) -> Any:
    result = pickle.loads(payload)
    if isinstance(result, ShardwrightError):
        result.everywhere = True
        raise result
    return result


def _pickled(made: Any) -> bytes:
    try:
        return pickle.dumps(made)
    except Exception as error:  # a default argument of `forward`, say, that is no plain data
        raise RuntimeFault(
            "SW0726",
            "the program cannot be handed to the other ranks",
            why=f"{type(error).__name__}: {error}",
            fix="let defaults of `forward`, and classes in its arguments and result, be importable",
        ) from error


def _failed(error: BaseException) -> RuntimeFault:
    return RuntimeFault(
        "SW0724",
        "rank 0 failed while it compiled",
        why="".join(traceback.format_exception_only(type(error), error)).strip(),
        fix="look at what rank 0 itself says",
    )
