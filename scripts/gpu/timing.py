"""Times on the device, and on the host until the device has its orders; and the device's memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def device_seconds(step: Callable[[], object], device: torch.device) -> float:
    """From before its first kernel to after its last."""
    if device.type != "cuda":
        return wall_seconds(step, device)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def wall_seconds(step: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    step()
    synchronize(device)
    return time.perf_counter() - start


def host_seconds(step: Callable[[], object], device: torch.device) -> float:
    """Until the device has its orders, whatever it still does."""
    synchronize(device)
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    synchronize(device)
    return seconds


def in_turns(steps: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float]:
    """The median of each, measured one after the other in every round."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(device_seconds(step, device))
    return {name: statistics.median(measured) for name, measured in times.items()}


def repeated(step: Callable[[], object], device: torch.device, *, warm: int = 3, times: int = 10) -> float:
    """The median of one call on the device."""
    for _ in range(warm):
        step()
    return statistics.median(device_seconds(step, device) for _ in range(times))


def empty(device: torch.device) -> None:
    """Gives back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
