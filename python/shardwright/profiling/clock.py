"""How long something takes that all ranks do at once and equally often."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from ..runtime.communication.comm import Comm

# How long each thing is repeated, and how often at least and at most.
SECONDS = 0.02
LEAST, MOST = 5, 200


def seconds(comm: Comm, work: Callable[[], object], before: Callable[[], object] | None = None) -> float:
    """The lower quartile: what takes longer does so because of others here. `before` is not counted."""
    once = [_once(comm, work, before) for _ in range(3)]
    agreed = comm.tally([int(min(once) * 1e9)])[0] / comm.world / 1e9
    count = max(LEAST, min(MOST, int(SECONDS / max(agreed, 1e-6))))
    comm.barrier()
    return low([_once(comm, work, before) for _ in range(count)])


def low(times: list[float]) -> float:
    return statistics.quantiles(times, n=4, method="inclusive")[0]


def _once(comm: Comm, work: Callable[[], object], before: Callable[[], object] | None) -> float:
    if before is not None:
        before()
    _wait(comm.device)
    start = time.perf_counter()
    work()
    _wait(comm.device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
