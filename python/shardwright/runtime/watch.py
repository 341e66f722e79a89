"""A rank that dies must not leave the others waiting.

Gloo notices a closed connection by itself. What it cannot see (a rank that waits for a third, a
machine that vanished, NCCL) is seen through the process group's store: each rank counts a
heartbeat, watches that of the next rank, and looks for a word that somebody has given up. A rank
that is told so, or whose neighbour's heart has stopped, ends its process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any

import torch.distributed as dist

INTERVAL = 2.0
PATIENCE = 20.0
GIVEN_UP = "shardwright/given_up"


def watch(rank: int, world: int) -> None:
    """Starts watching; ends by itself with the process or its process group."""
    store = dist.distributed_c10d._get_default_store()
    own = store.clone() if hasattr(store, "clone") else store
    watcher = _Watcher(rank, world, own)
    threading.Thread(target=watcher.run, name="shardwright watch", daemon=True).start()
    atexit.register(watcher.close)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        watcher.give_up("".join(traceback.format_exception_only(kind, error)).strip())

    sys.excepthook = hook


class _Watcher:
    def __init__(self, rank: int, world: int, store: Any):
        self.rank, self.store = rank, store
        self.next = (rank + 1) % world
        self.closed = threading.Event()
        self.seen: tuple[int, float] = (-1, time.monotonic())

    def run(self) -> None:
        while not self.closed.wait(INTERVAL):
            try:
                self._beat()
            except Exception:
                # The store has gone, and with it the rank that held it: at its end, or Gloo tells.
                return

    def give_up(self, why: str) -> None:
        try:
            self.store.set(GIVEN_UP, f"rank {self.rank}: {why}")
        except Exception:
            return

    def close(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            try:
                self.store.set(_finished(self.rank), "1")
            except Exception:
                return

    def _beat(self) -> None:
        self.store.add(_heart(self.rank), 1)
        if self.store.check([GIVEN_UP]):
            self._end(self.store.get(GIVEN_UP).decode())
        if self.store.check([_finished(self.next)]):
            return
        count, since = self.seen
        now = self.store.add(_heart(self.next), 0)
        if now != count:
            self.seen = (now, time.monotonic())
        elif now > 0 and time.monotonic() - since > PATIENCE:
            why = f"rank {self.next}: no sign of life for {PATIENCE:.0f} seconds"
            self.give_up(why)
            self._end(why)

    def _end(self, why: str) -> None:
        if not self.closed.is_set():
            sys.stderr.write(f"shardwright: rank {self.rank} ends because of {why}\n")
            sys.stderr.flush()
            os._exit(1)


def _heart(rank: int) -> str:
    return f"shardwright/heart/{rank}"


def _finished(rank: int) -> str:
    return f"shardwright/finished/{rank}"
