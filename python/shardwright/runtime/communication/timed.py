"""What a step communicates and when, while it is recorded: `sw.record` makes use of it.

A rank's end of its group is replaced for the time of a step by one that looks at the clock. What an
instruction of the program sends belongs to the last one that was noted; messages between blocks are known by
themselves. Who does not record never comes here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from ...errors import RuntimeFault
from .comm import Comm, Ranks
from .local_work import LocalWork

if TYPE_CHECKING:
    from ..execution.variants import Variant
    from ..module import ParallelModule

# Rows of the manifest that are told of each message: one instruction sends or receives several.
LETTERS = ("send", "receive")


class Recorder(Protocol):
    def begin(self, model: ParallelModule) -> Notes:
        """For a step that begins."""

    def end(self, notes: Notes) -> None:
        """All that was communicated in it."""

    def refuse_call(self) -> None:
        """A forward that is no step."""


recorder: ContextVar[Recorder | None] = ContextVar("shardwright_recorder", default=None)


def not_recorded(why: str, fix: str = "record steps of `train_step` alone") -> RuntimeFault:
    return RuntimeFault("SW0861", "this cannot be recorded", why=why, fix=fix)


# A moment of a step, by the clock that told it.
Moment = Any


class Clock(Protocol):
    def now(self) -> Moment: ...

    def seconds(self, start: Moment, end: Moment) -> float:
        """Between two moments, once the step is over."""


class HostClock:
    """Of the process. On a CPU a rank computes and waits by itself."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start


class StreamClock:
    """Of a GPU's current stream: the host is ahead of it, and knows only what it asked for.

    A moment is when the stream comes to it. So a message that is awaited took until the stream could go on.
    """

    def __init__(self, device: torch.device):
        self._device = device

    def now(self) -> torch.cuda.Event:
        moment = torch.cuda.Event(enable_timing=True)
        moment.record(torch.cuda.current_stream(self._device))
        return moment

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def clock_of(device: torch.device) -> Clock:
    return StreamClock(device) if device.type == "cuda" else HostClock()


@dataclass
class Note:
    """One communication of this rank."""

    kind: str
    group: tuple[int, ...]
    size: int
    start: Moment
    # Of a message its table and micro-batch.
    letter: tuple[int, int] | None = None
    # When this rank knew that it was over, and between which moments it did nothing else.
    end: Moment = None
    waits: list[tuple[Moment, Moment]] = field(default_factory=list)


@dataclass
class Measured:
    """One communication of this rank. Times are seconds, `start` since the step began."""

    kind: str
    group: tuple[int, ...]
    size: int
    # Of a message its table and micro-batch.
    message: tuple[int, int] | None
    start: float
    seconds: float
    waited: float


class Notes(list[tuple[str, int, int]]):
    """What a step communicates, in order, as `ParallelModule.issued`, with times beside it."""

    def __init__(self, clock: Clock, *, by_line: bool = False) -> None:
        super().__init__()
        self.work = LocalWork(clock, by_line=by_line)
        self.noted: list[Note] = []
        self.batches = 0
        self._clock = clock
        self._began = self._ended = clock.now()
        self._variant: Variant | None = None

    def now(self) -> Moment:
        return self._clock.now()

    def close(self) -> None:
        """The step is over."""
        self._ended = self.now()

    def seconds(self) -> float:
        return self._clock.seconds(self._began, self._ended)

    def measured(self) -> list[Measured]:
        """In seconds. A GPU is awaited."""
        between = self._clock.seconds
        return [
            Measured(
                note.kind,
                note.group,
                note.size,
                note.letter,
                start=between(self._began, note.start),
                seconds=between(note.start, note.end),
                waited=sum(between(start, end) for start, end in note.waits),
            )
            for note in self.noted
        ]

    def append(self, one: tuple[str, int, int]) -> None:
        """An instruction that communicates begins."""
        super().append(one)
        kind, number, size = one
        if kind in LETTERS:
            return
        group = self._members(kind, number)
        start = self.now()
        note = Note(kind, group, size, start, end=start)
        # What one rank does for itself is no communication, and moves nothing.
        self._latest = note
        if len(group) > 1:
            self.noted.append(note)

    def _members(self, kind: str, number: int) -> tuple[int, ...]:
        program, rank = self.variant.worker.program, self.variant.worker.comm.rank
        if not kind.startswith("exchange"):
            return program.group_of(number, rank)
        table = program.exchanges[number]
        return tuple(sorted({rank for rank, _ in (*table.sources, *table.targets)}))

    def latest(self) -> Note:
        return self._latest

    @property
    def variant(self) -> Variant:
        """The program of the step."""
        assert self._variant is not None
        return self._variant

    @contextmanager
    def of_step(self, chosen: Sequence[Variant]) -> Iterator[None]:
        """While a step runs, given the program of each of its micro-batches."""
        self._variant, self.batches = chosen[0], len(chosen)
        if any(variant is not self._variant for variant in chosen):
            raise not_recorded("micro-batches of a step are of different shapes, and under several programs")
        worker = self._variant.worker
        comm = worker.comm
        worker.talk_by(cast(Comm, Timed(comm, self)))
        try:
            yield
        finally:
            worker.talk_by(comm)


class TimedWork:
    """A message on its way, which belongs to a note."""

    def __init__(self, work: Any, note: Note, notes: Notes):
        self._work, self._note, self._notes = work, note, notes

    def wait(self) -> None:
        before = self._notes.now()
        self._work.wait()
        self._over(before)

    def is_completed(self) -> bool:
        completed = bool(self._work.is_completed())
        if completed:
            self._over(self._notes.now())
        return completed

    def _over(self, before: Moment) -> None:
        self._note.end = self._notes.now()
        self._note.waits.append((before, self._note.end))


class Asked:
    """A message that this rank waits for; it is noted where the program reads it."""

    def __init__(self, work: Any, note: Note, notes: Notes):
        self._work, self._note, self._notes = work, note, notes

    def wait(self) -> None:
        self._notes.noted.append(self._note)
        before = self._notes.now()
        self._work.wait()
        self._note.end = self._notes.now()
        self._note.waits.append((before, self._note.end))


class Timed:
    """A `Comm` that looks at the clock; all else is as in the one that it stands for."""

    def __init__(self, comm: Comm, notes: Notes):
        self._comm, self._notes = comm, notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def all_reduce(self, x: Tensor, ranks: Ranks, op: str) -> TimedWork:
        return self._begun(lambda: self._comm.all_reduce(x, ranks, op))

    def all_gather(self, rows: Tensor, x: Tensor, ranks: Ranks) -> TimedWork:
        return self._begun(lambda: self._comm.all_gather(rows, x, ranks))

    def reduce_scatter(self, out: Tensor, rows: Tensor, ranks: Ranks) -> TimedWork:
        return self._begun(lambda: self._comm.reduce_scatter(out, rows, ranks))

    def all_to_all(self, out: list[Tensor], pieces: list[Tensor], ranks: Ranks) -> None:
        self._begun(lambda: self._comm.all_to_all(out, pieces, ranks))

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        self._begun(lambda: self._comm.exchange(sends, receives))

    def send(self, x: Tensor, peer: int, channel: int, number: int) -> TimedWork:
        note = self._letter("send", (self._comm.rank, peer), x, channel, number)
        self._notes.noted.append(note)
        return self._timed(note, lambda: self._comm.send(x, peer, channel, number))

    def receive(self, x: Tensor, peer: int, channel: int, number: int) -> Asked:
        note = self._letter("receive", (peer, self._comm.rank), x, channel, number)
        return Asked(self._comm.receive(x, peer, channel, number), note, self._notes)

    def _letter(self, kind: str, group: tuple[int, int], x: Tensor, channel: int, number: int) -> Note:
        return Note(kind, group, x.nbytes, self._notes.now(), (channel, number))

    def _begun(self, begin: Any) -> TimedWork:
        return self._timed(self._notes.latest(), begin)

    def _timed(self, note: Note, begin: Any) -> TimedWork:
        """What is over when it returns is over then; what is not, when it is waited for."""
        before = self._notes.now()
        work = begin()
        note.end = self._notes.now()
        note.waits.append((before, note.end))
        return TimedWork(work, note, self._notes)
