"""How long something takes that all ranks do at once and equally often."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from ..runtime.communication.comm import Comm

# Each thing is repeated for about so many seconds, so often.
LASTS = 0.01
BATCHES = 5

Work = Callable[[], object]


def seconds(comm: Comm, work: Work, before: Work | None = None) -> float:
    """On the mean of a stretch, the median of several. The quickest times would not do: those are of what
    nothing interrupts, and in a step, which is long, something does. `before` is not counted."""
    count = often(comm, work, before)
    return statistics.median(stretch(comm, work, before, count) for _ in range(BATCHES))


def often(comm: Comm, work: Work, before: Work | None = None, lasts: float = LASTS) -> int:
    """How often all ranks do it, to last so long."""
    once = min(stretch(comm, work, before) for _ in range(3))
    agreed = comm.tally([int(once * 1e9)], "a measurement")[0] / comm.world / 1e9
    return max(1, int(lasts / max(agreed, 1e-6)))


def stretch(comm: Comm, work: Work, before: Work | None = None, count: int = 1) -> float:
    """Seconds of one of so many, which all ranks begin together."""
    comm.barrier()
    if before is None:
        return _timed(comm.device, lambda: [work() for _ in range(count)]) / count
    total = 0.0
    for _ in range(count):
        before()
        total += _timed(comm.device, work)
    return total / count


def low(times: list[float]) -> float:
    return statistics.quantiles(times, n=4, method="inclusive")[0]


def _timed(device: torch.device, work: Work) -> float:
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
