"""Ranks as threads that share the GPU, on which what a message brings is there late, and not before.

What arrives is NaN until a stream of its own has slept and written it; what was given is compared with what
it was after the sleep. A missing wait, or memory that is written or given up too early, shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from shardwright.runtime import LocalComm, run_local

Result = TypeVar("Result")
# Some 100 us.
SLEEP = 150_000


def on_threads(
    world: int, device: torch.device, body: Callable[[int, Any], Result], *, forgets: bool = False
) -> list[Result]:
    """`body(rank, comm)` of all ranks; with `forgets` nothing ever arrives, as if nobody had waited."""

    def rank(rank: int, comm: LocalComm) -> Result:
        comm.device = device
        late = Late(comm, forgets)
        result = body(rank, late)
        late.check()
        return result

    return run_local(world, rank)


class Late:
    """One rank's end."""

    def __init__(self, comm: LocalComm, forgets: bool):
        self._comm, self._forgets = comm, forgets
        on_gpu = comm.device.type == "cuda"
        self._stream = torch.cuda.Stream(comm.device) if on_gpu else None
        self._changed: list[tuple[str, Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def all_reduce(self, x: Tensor, ranks: Any, op: str) -> Work:
        made = x.clone()
        self._comm.all_reduce(made, ranks, op)
        return self._work("all_reduce", [], [x], [made])

    def all_gather(self, rows: Tensor, x: Tensor, ranks: Any) -> Work:
        made = torch.empty_like(rows)
        self._comm.all_gather(made, x, ranks)
        return self._work("all_gather", [x], [rows], [made])

    def reduce_scatter(self, out: Tensor, rows: Tensor, ranks: Any) -> Work:
        made = torch.empty_like(out)
        self._comm.reduce_scatter(made, rows, ranks)
        return self._work("reduce_scatter", [rows], [out], [made])

    def _work(
        self, kind: str, given: Sequence[Tensor], into: Sequence[Tensor], made: Sequence[Tensor]
    ) -> Work:
        before = [x.clone() for x in given]
        for x in into:
            x.fill_(float("nan") if x.is_floating_point() or x.is_complex() else 77)
        work = Work(kind, list(zip(given, before, strict=True)), list(zip(into, made, strict=True)))
        if self._forgets:
            return work
        if self._stream is None:
            work.arrives = lambda: self._arrive(work)
            return work
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(SLEEP)
            self._arrive(work)
            done = torch.cuda.Event()
            done.record()
        work.arrives = lambda: torch.cuda.current_stream().wait_event(done)
        return work

    def _arrive(self, work: Work) -> None:
        for x, before in work.given:
            self._changed.append((work.kind, (x != before).any()))
        for x, made in work.into:
            x.copy_(made)

    def check(self) -> None:
        """Read once, at the end: a read in between would wait for the device."""
        changed = sorted({kind for kind, flag in self._changed if bool(flag)})
        if changed:
            raise AssertionError(f"what {', '.join(changed)} reads was written before it was waited for")


class Work:
    def __init__(
        self, kind: str, given: list[tuple[Tensor, Tensor]], into: list[tuple[Tensor, Tensor]]
    ) -> None:
        self.kind, self.given, self.into = kind, given, into
        self.arrives: Callable[[], object] | None = None

    def wait(self) -> None:
        arrives, self.arrives = self.arrives, None
        if arrives is not None:
            arrives()

    def is_completed(self) -> bool:
        return self.arrives is None
