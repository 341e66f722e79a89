"""What ranks decide together, and what rank 0 makes for all: an error of one is an error of all."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import RuntimeFault, ShardwrightError
from ..communication.comm import Comm

Made = TypeVar("Made")
Mine = TypeVar("Mine")
Ours = TypeVar("Ours")


def from_rank_0(comm: Comm, make: Callable[[], Made]) -> Made:
    """What rank 0 makes, handed to the others; its error reaches all of them. All ranks must call this."""
    if comm.world == 1:
        return make()
    if not comm.leads:
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


def together(comm: Comm, mine: Callable[[], Mine], ours: Callable[[list[Mine]], Ours]) -> Ours:
    """Each rank computes `mine`; rank 0 makes `ours` of the results of all, and all return that.

    All ranks must call this. What any rank raises is raised on all of them, once all have come here.
    Results travel between processes: they should be small, and must be picklable.
    """
    results = comm.gather_objects(tried(comm.rank, mine))
    return from_rank_0(comm, lambda: ours(all_of(results or [])))


def each(comm: Comm, mine: Callable[[], Mine]) -> Mine:
    """`mine` on every rank; what any of them raises is raised on all."""
    kept: list[Mine] = []
    together(comm, lambda: kept.append(mine()), lambda _: None)
    return kept[0]


@dataclass(frozen=True)
class _Failed:
    error: ShardwrightError


def tried(rank: int, action: Callable[[], Any]) -> Any:
    """What it gives, or how it failed: picklable, and told by `all_of`."""
    try:
        return action()
    except ShardwrightError as error:
        return _Failed(error)
    except Exception as error:
        why = "".join(traceback.format_exception(error)).strip()
        return _Failed(RuntimeFault("SW0712", f"rank {rank} failed", why=why))


def all_of(results: list[Any]) -> list[Any]:
    """What ranks have `tried`; raises the first failure."""
    for result in results:
        if isinstance(result, _Failed):
            raise result.error
    return results


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
        "rank 0 failed at what all ranks wait for",
        why="".join(traceback.format_exception_only(type(error), error)).strip(),
        fix="look at what rank 0 itself says",
    )
