"""A rank that dies, or leaves the loop, must not leave the others waiting.

Each process that trains has one watcher: a thread that tells the process group's store, every few
seconds, that this rank lives and where it is (`State`), and that looks at the others' states while
this rank does not get on. What it concludes is raised by the main thread where that can be
reached: while it waits for the ranks to agree on a call. Where it waits in a communication of the
program, the watcher says why and ends the process. `verdicts` says what follows from which states.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch.distributed as dist

from ...errors import RuntimeFault, ShardwrightError
from .verdicts import SILENT, Echo, State, described, failure, gone, judge, lost, place_of, silent

INTERVAL = 2.0
PATIENCE = 20.0
# How long the main thread may take to raise what the watcher has found.
GRACE = 4.0
# How long a rank whose connection broke may be silent before it counts as gone.
QUIET = 3 * INTERVAL
# How long to look for the reason why a connection was lost.
SEARCH = QUIET + 4.0
# How long an end may wait for the thread, which may stand in a message to the store.
LAST = 10.0
GIVEN_UP = "shardwright/given_up"
LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "Socket closed",
    "Connection was likely closed",
    "Failed to recv",
    "failed to recv",
)

_watcher: Watcher | None = None


def watch(rank: int, world: int) -> None:
    """Starts watching, once in a process; ends by itself with the process or its process group."""
    global _watcher
    if _watcher is not None and not _watcher.closed.is_set():
        return
    store = dist.distributed_c10d._get_default_store()
    cloned = store.clone() if hasattr(store, "clone") else store
    _watcher = watcher = Watcher(rank, world, cloned)
    watcher.thread.start()
    atexit.register(watcher.close)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        watcher.give_up(error)

    sys.excepthook = hook


def explain_once(rank: int) -> None:
    """Of an error that all ranks raise alike, rank 0 alone shows the trace; the others say a line."""
    if rank == 0 or getattr(sys.excepthook, "explains_once", False):
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, ShardwrightError) and error.everywhere:
            sys.stderr.write(f"shardwright: rank {rank} ends with {error.code}: rank 0 says why\n")
        else:
            before(kind, error, trace)

    hook.explains_once = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def has_failed() -> bool:
    """Whether this rank has met an error that nobody mended, or heard of another's."""
    return _watcher is not None and (_watcher._failing or _watcher.fault is not None)


def finished() -> None:
    """This rank will take part in nothing any more."""
    if _watcher is not None:
        _watcher.close()


@contextmanager
def inside(kind: str, *, new: bool = True) -> Iterator[None]:
    """Around what all ranks do together: `kind` is what a user calls it, `new` counts it."""
    watcher = _watcher
    if watcher is None:
        yield
        return
    watcher.enter(kind, new)
    try:
        yield
    except BaseException as error:
        watcher.fail(error)
        raise
    finally:
        watcher.leave()


def outside_calls(kind: str) -> AbstractContextManager[None]:
    """Around what all ranks do together, be it in a call or not: a call says already what it is."""
    return nullcontext() if _watcher is not None and _watcher.kind else inside(kind, new=False)


def here(what: str) -> str:
    """Where this rank is: in what, after which step, at which line of the user's."""
    kind, steps = ("", 0) if _watcher is None else (_watcher.kind, _watcher.steps)
    place, _ = place_of(sys._getframe())
    return described(f"{kind}, {what}" if kind not in ("", what) else what, steps, place)


@contextmanager
def explained() -> Iterator[None]:
    """Around what all ranks do on the host: a connection that broke says which rank has gone."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise cause_of(error) from error


def is_lost(error: BaseException) -> bool:
    """Whether it says of a connection that it broke."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in LOST)


def cause_of(error: BaseException) -> RuntimeFault:
    fault = _watcher.search() if _watcher is not None else None
    return fault or lost(error)


def count_step() -> None:
    if _watcher is not None:
        _watcher.steps += 1


def count_message() -> None:
    if _watcher is not None:
        _watcher.messages += 1


def wait_for(work: Any) -> None:
    """Waits, but not for ranks that will not come."""
    while True:
        try:
            work.wait(timedelta(seconds=1))
            return
        except RuntimeError:
            # A wait that took too long leaves the communication as it is.
            if work.is_completed():
                raise
        if _watcher is not None and _watcher.fault is not None:
            raise _watcher.fault


class Watcher:
    def __init__(self, rank: int, world: int, store: Any):
        self.rank, self.world, self.store = rank, world, store
        self.next = (rank + 1) % world
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.run, name="shardwright watch", daemon=True)
        self.calls = self.steps = self.messages = 0
        # What the main thread raises as soon as it can.
        self.fault: RuntimeFault | None = None
        self._kinds: list[str] = []
        self._failed = ""
        self._failing = self._lost = False
        self._main = threading.main_thread().ident
        self._seen: tuple[int, float] = (-1, time.monotonic())
        self._mark: tuple[Any, float] = (None, time.monotonic())
        self._found_at = 0.0
        self._tell()
        # The others count from here on: a rank that stops before its thread's first round has a heart.
        self.store.add(_heart(rank), 1)

    @property
    def kind(self) -> str:
        """What this rank is in, of what all do together."""
        return self._kinds[-1] if self._kinds else ""

    # What the main thread calls.

    def enter(self, kind: str, new: bool) -> None:
        if not self._kinds:
            self._failing, self._lost, self._failed = False, False, ""
            self.calls += new
        self._kinds.append(kind)
        if self.fault is not None:
            raise self.fault

    def leave(self) -> None:
        self._kinds.pop()

    def fail(self, error: BaseException) -> None:
        """An error that only this rank may have met is told to the others, and one that comes of
        another rank's end says which."""
        if self._failing:
            return
        self._failing = True
        if error is self.fault or (isinstance(error, ShardwrightError) and error.everywhere):
            return
        if isinstance(error, Echo):
            return
        if is_lost(error):
            raise cause_of(error) from error
        self._failed = "".join(traceback.format_exception_only(type(error), error)).strip()
        self._try(self._tell)

    def give_up(self, error: BaseException) -> None:
        """An error that ends this process; that of another rank is told as that."""
        self._failing = True
        if isinstance(error, Echo) or is_lost(error):
            reason = getattr(error, "reason", "")
        else:
            said = "".join(traceback.format_exception_only(type(error), error)).strip()
            reason = f"rank {self.rank}: {said}"
        if reason:
            self._try(lambda: self._give_up(reason))

    def close(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            self._try(lambda: self._tell(ended=True))
        # A thread that comes back from C++ after the interpreter has gone would abort the process.
        if threading.current_thread() is not self.thread:
            self.thread.join(LAST)

    # The thread.

    def run(self) -> None:
        while not self.closed.wait(INTERVAL):
            if not dist.is_initialized():
                self.close()
                return
            try:
                self._beat()
            except Exception:
                # The store has gone, and with it the rank that held it: at its end, or Gloo tells.
                return

    def _beat(self) -> None:
        self.store.add(_heart(self.rank), 1)
        state = self._tell()
        if self._failing:
            return
        if self.fault is None:
            self._look(state)
        elif time.monotonic() - self._found_at > GRACE:
            self._end(str(self.fault))

    def _look(self, state: State) -> None:
        if self.store.check([GIVEN_UP]):
            why = self.store.get(GIVEN_UP).decode()
            if not state.kind:
                self._end(why)
            self._found(failure(why))
        elif state.kind and state.still >= INTERVAL and (fault := judge(self._states(), self.rank, PATIENCE)):
            self._found(fault)
        elif not self._is_finished(self.next) and self._has_stopped():
            why = f"rank {self.next}: {SILENT} for {PATIENCE:.0f} seconds"
            self._give_up(why)
            self._end(why)

    def _has_stopped(self) -> bool:
        count, since = self._seen
        now = self.store.add(_heart(self.next), 0)
        if now != count:
            self._seen = (now, time.monotonic())
            return False
        return time.monotonic() - since > PATIENCE

    def _found(self, fault: RuntimeFault) -> None:
        # Rank 0 explains what all raise, if it is there.
        fault.everywhere = not fault.what.startswith("rank 0 ")
        self._found_at = time.monotonic()
        self.fault = fault

    def _end(self, why: str) -> None:
        if not self.closed.is_set() and not self._failing:
            sys.stderr.write(f"shardwright: rank {self.rank} ends because of {why}\n")
            sys.stderr.flush()
            os._exit(1)

    # States.

    def _tell(self, ended: bool = False) -> State:
        place, waiting = place_of(sys._current_frames().get(self._main or 0))
        kind = self.kind
        mark, since = self._mark
        if mark != (now := (self.calls, self.messages, kind, place)):
            since = time.monotonic()
            self._mark = (now, since)
        still = time.monotonic() - since
        state = State(self.calls, self.steps, kind, waiting, still, place, self._failed, ended, self._lost)
        self.store.set(_state(self.rank), json.dumps(asdict(state)))
        return state

    def _states(self) -> list[State]:
        keys = [_state(rank) for rank in range(self.world)]
        return [State(**json.loads(text)) for text in self.store.multi_get(keys)]

    def _is_finished(self, rank: int) -> bool:
        key = _state(rank)
        return self.store.check([key]) and State(**json.loads(self.store.get(key))).ended

    def search(self) -> RuntimeFault | None:
        """Why a connection was lost: the others may say so a moment later, or have stopped."""
        self._lost = True
        begun = time.monotonic()
        try:
            self._tell()
            before = self._hearts()
            while (passed := time.monotonic() - begun) < SEARCH:
                states = self._states()
                fault = judge(states, self.rank, PATIENCE)
                if fault is None and self.store.check([GIVEN_UP]):
                    fault = failure(self.store.get(GIVEN_UP).decode())
                alive = [rank for rank, count in enumerate(self._hearts()) if count != before[rank]]
                if fault is None and passed > QUIET and (stopped := silent(states, self.rank, alive)):
                    self._give_up(gone(stopped))
                    fault = failure(gone(stopped))
                if fault is not None:
                    return fault
                time.sleep(0.1)
        except Exception:
            return None
        return None

    def _hearts(self) -> list[int]:
        return [self.store.add(_heart(rank), 0) for rank in range(self.world)]

    def _give_up(self, why: str) -> None:
        if not self.store.check([GIVEN_UP]):
            self.store.set(GIVEN_UP, why)

    @staticmethod
    def _try(action: Any) -> None:
        try:
            action()
        except Exception:
            return


def _heart(rank: int) -> str:
    return f"shardwright/heart/{rank}"


def _state(rank: int) -> str:
    return f"shardwright/state/{rank}"
