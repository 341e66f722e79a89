"""Times, ratios with intervals, memory, and the words for the machine they were measured on."""

from __future__ import annotations

import gc
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

import torch
from torch import Tensor

from shardwright.profiling.origin import processor


def seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def interleaved(
    a: Callable[[], float], b: Callable[[], float], pairs: int
) -> tuple[list[float], list[float]]:
    """Times of both sides, taken in turn; which one is first changes from pair to pair."""
    first: list[float] = []
    second: list[float] = []
    gc.collect()
    gc.disable()  # a collection would hit one side by chance
    try:
        for at in range(pairs):
            for side, times in ((a, first), (b, second)) if at % 2 == 0 else ((b, second), (a, first)):
                times.append(side())
            gc.collect()
    finally:
        gc.enable()
    return first, second


def ratio(ours: Sequence[float], theirs: Sequence[float], draws: int = 2000) -> tuple[float, float, float]:
    """The median of ours/theirs over pairs, and its 95% interval by bootstrap over pairs."""
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(each, k=len(each))) for _ in range(draws))
    return statistics.median(each), medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def assert_close(what: str, ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> float:
    """Two runs' losses; the worst relative difference."""
    assert len(ours) == len(theirs), what
    worst = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(ours, theirs, strict=True))
    if not worst <= tolerance:
        raise AssertionError(f"{what}: losses differ by {worst:.2e} > {tolerance:.0e}: {ours} {theirs}")
    return worst


def stored(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the memory behind tensors; what is shared counts once."""
    storages = {}
    for tensor in tensors:
        if tensor is not None:
            storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def peak_of(step: Callable[[], Any], before: Callable[[], Any] | None = None) -> int:
    """How far memory rises in a step, by every allocation of torch's CPU allocator.

    Above where the step began; or, with `before`, above where that began.
    """
    from torch.autograd.profiler import profile, record_function

    gc.collect()
    with profile(use_kineto=True, profile_memory=True) as prof:
        if before is not None:
            before()
        with record_function("measured step"):
            step()
    events = prof.kineto_results.events()
    start = next(e.start_ns() for e in events if e.name() == "measured step")
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = peak = 0
    for at, change in changes:
        now += change
        if at >= start:
            peak = max(peak, now)
    return peak


def rss_peak() -> int:
    """This process's largest resident memory so far, in bytes. (`ru_maxrss` keeps that of the parent.)"""
    return _status("VmHWM")


def rss() -> int:
    return _status("VmRSS")


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def busy(over: float = 0.25) -> float:
    """What others make of this machine's cores meanwhile, while this process does nothing: from 0 to 1."""

    def times() -> tuple[int, int]:
        with open("/proc/stat") as file:
            jiffies = [int(word) for word in file.readline().split()[1:9]]
        return jiffies[3] + jiffies[4], sum(jiffies)

    idle, all_ = times()
    time.sleep(over)
    idle_then, all_then = times()
    return 1 - (idle_then - idle) / max(all_then - all_, 1)


def wait_until_quiet(limit: float, quiet: float = 0.15) -> float:
    """Waits for so many seconds at most; what others made of the cores at the end."""
    end = time.monotonic() + limit
    while (share := busy()) > quiet and time.monotonic() < end:
        pass
    return share


def one_thread() -> None:
    torch.set_num_threads(1)


def pin(core: int) -> bool:
    """All threads of this process onto one core. The process group's were made before."""
    if not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2:
        return False
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {cores[core % len(cores)]})
    return len(cores) > 1


def machine() -> dict[str, str]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, {processor()}, {platform.system()} {platform.machine()}",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}",
        "conditions": f"load average {load:.1f} at the start",
    }
