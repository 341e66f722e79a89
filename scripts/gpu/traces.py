"""What a device does in a step: its kernels and its copies, as its profiler saw them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import timing

Span = tuple[float, float]


@dataclass(frozen=True)
class Event:
    """Times are seconds of the profiler's clock."""

    kind: str
    """kernel, gpu_memcpy or gpu_memset."""
    name: str
    start: float
    seconds: float
    bytes: int

    @property
    def span(self) -> Span:
        return self.start, self.start + self.seconds


def traced(step: Callable[[], object], device: torch.device) -> list[Event]:
    """None where there is no GPU."""
    if device.type != "cuda":
        step()
        return []
    timing.synchronize(device)
    # With nothing but the device's activities the host is not slowed down.
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        timing.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(errors="replace"))["traceEvents"]
    return [_event(event) for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def _event(entry: dict[str, Any]) -> Event:
    size = int(entry.get("args", {}).get("bytes", 0))
    return Event(entry["cat"], entry["name"], entry["ts"] / 1e6, entry.get("dur", 0) / 1e6, size)


def kernels(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.kind == "kernel"]


def copies(events: Iterable[Event], way: str) -> list[Event]:
    """`way` is HtoD or DtoH."""
    return [event for event in events if event.kind == "gpu_memcpy" and way in event.name]


def hidden(some: Iterable[Event], others: Iterable[Event]) -> float:
    """What of the time of some events others go on beside."""
    mine, theirs = _union(event.span for event in some), _union(event.span for event in others)
    return _both(mine, theirs) / max(sum(end - start for start, end in mine), 1e-12)


def _union(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _both(some: list[Span], others: list[Span]) -> float:
    total, at = 0.0, 0
    for start, end in some:
        while at < len(others) and others[at][1] <= start:
            at += 1
        here = at
        while here < len(others) and others[here][0] < end:
            total += min(end, others[here][1]) - max(start, others[here][0])
            here += 1
    return total
