"""What ranks decide together, so that an error of one is an error of all and nobody waits for ever."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import RuntimeFault, ShardwrightError
from ..communication.comm import Comm

Mine = TypeVar("Mine")
Ours = TypeVar("Ours")


def together(comm: Comm, mine: Callable[[], Mine], ours: Callable[[list[Mine]], Ours]) -> Ours:
    """Each rank computes `mine`; rank 0 makes `ours` of the results of all, and all return that.

    All ranks must call this. What any rank raises is raised on all of them, once all have come here.
    Results travel between processes: they should be small, and must be picklable.
    """
    results = comm.gather_objects(_tried(comm.rank, mine))
    verdict: Any = None
    if results is not None:
        failed = next((result for result in results if isinstance(result, _Failed)), None)
        verdict = failed or _tried(comm.rank, lambda: ours(results))
    verdict = comm.broadcast_object(verdict)
    if isinstance(verdict, _Failed):
        verdict.error.everywhere = True
        raise verdict.error
    return verdict


def each(comm: Comm, mine: Callable[[], Mine]) -> Mine:
    """`mine` on every rank; what any of them raises is raised on all."""
    kept: list[Mine] = []
    together(comm, lambda: kept.append(mine()), lambda _: None)
    return kept[0]


@dataclass(frozen=True)
class _Failed:
    error: ShardwrightError


def _tried(rank: int, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except ShardwrightError as error:
        return _Failed(error)
    except Exception as error:
        why = "".join(traceback.format_exception(error)).strip()
        return _Failed(RuntimeFault("SW0712", f"rank {rank} failed", why=why))
