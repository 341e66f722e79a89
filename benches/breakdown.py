"""Where a step goes: wrappers that time the runtime's methods and torch.distributed's functions.

Only the outermost wrapped call counts, so shares add up; "other" is what no wrapper saw.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from shardwright.runtime.execution import buckets, run

LOCAL, COMMUNICATION, WAITING, FLATTENING = (
    "local calls",
    "communication",
    "waiting for buckets",
    "flattening",
)


class Clock:
    def __init__(self) -> None:
        self.taken: dict[str, float] = {}
        self._inside = threading.local()

    def wrap(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "busy", False):
                return function(*args, **kwargs)
            self._inside.busy = True
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside.busy = False
                self.taken[kind] = self.taken.get(kind, 0.0) + time.perf_counter() - start

        return timed

    def shares(self, parts: Mapping[str, float]) -> dict[str, float]:
        """With the optimizer, and what is left of forward and backward."""
        seen = sum(self.taken.values())
        rest = parts["forward"] + parts["backward"] - seen
        return {**self.taken, "optimizer": parts["optimizer"], "other": rest}


@contextmanager
def instrumented(clock: Clock) -> Iterator[None]:
    methods = {
        (run.Run, "call"): LOCAL + " forward",
        (run.Run, "grad"): LOCAL + " backward",
        (run.Run, "all_reduce"): COMMUNICATION,
        (run.Run, "all_gather"): COMMUNICATION,
        (run.Run, "reduce_scatter"): COMMUNICATION,
        (run.Run, "all_to_all"): COMMUNICATION,
        (run.Run, "exchange"): COMMUNICATION,
        (run.Run, "exchange_gradients"): COMMUNICATION,
        (buckets, "_flattened"): FLATTENING,
        (buckets.Bucket, "wait"): WAITING,
        (dist, "all_reduce"): COMMUNICATION,
        (functional, "wait_tensor"): COMMUNICATION,
    }
    patches = [
        mock.patch.object(owner, name, clock.wrap(kind, getattr(owner, name)))
        for (owner, name), kind in methods.items()
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
