"""All ranks of a program as threads of one process: for tests, and for looking at a program.

Every operation is one meeting of its group: each rank leaves a copy of what it gives, waits for the
others, and computes its own result in the order of the group; messages are left for the rank that they are
for, or, with links that buffer nothing (`links`), moved when both are there. So results do not depend on
timing. A rank that fails stops the others at once; ranks that wait for each other in vain are found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...errors import RuntimeFault
from .comm import Ranks, joined_on
from .groups import Line, Lines, Pair, first_uses, line
from .links import End, Links, Way
from .works import Done, Sent, Work

Result = TypeVar("Result")
Key = tuple[str, Ranks, int]
# From the first of two ranks to the second.
MESSAGE = "message"
# The channel of exchanges.
APART = -1

COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


def run_local(
    world: int,
    fn: Callable[[int, LocalComm], Result],
    *,
    rendezvous: bool = False,
    lazy: bool = False,
    device: torch.device | str = "cpu",
) -> list[Result]:
    """Runs `fn(rank, comm)` for all ranks, which share a `device`; their results, or the first error of any
    of them.

    With `rendezvous` messages are never on their way: they move when their receiver has come for them. Where
    lines are `lazy`, who begins to use one for the first time waits for the other end.
    """
    shared = LocalWorld(world, rendezvous=rendezvous, lazy=lazy)
    results: list[Any] = [None] * world
    threads_before = torch.get_num_threads()

    def body(rank: int) -> None:
        torch.set_num_threads(1)
        try:
            results[rank] = fn(rank, LocalComm(shared, rank, device))
        except BaseException as error:
            shared.fail(error)
        finally:
            shared.leave(rank)

    threads = [threading.Thread(target=body, args=(rank,), name=f"rank {rank}") for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(threads_before)
    if shared.error is not None:
        raise shared.error
    return results


class Stopped(Exception):
    """Another rank has failed."""


class LocalWorld:
    """Where the ranks of one process meet."""

    def __init__(self, world: int, *, rendezvous: bool = False, lazy: bool = False):
        """`lazy` is as NCCL is: it connects two ranks where a message begins, the first on its line. Groups
        always meet where they begin."""
        self.world, self.rendezvous, self.lazy = world, rendezvous, lazy
        self.error: BaseException | None = None
        self.notes: dict[str, bytes] = {}
        self._lock = threading.Lock()
        # Each rank is woken alone, when what it waits for is there.
        self._wakes = [threading.Condition(self._lock) for _ in range(world)]
        self._given: dict[Key, dict[int, Any]] = {}
        self._taken: dict[Key, int] = {}
        self._links = Links()
        self._waiting: dict[int, tuple[Key, Callable[[], bool]]] = {}
        self._left: set[int] = set()

    def meet(self, key: Key, rank: int, value: Any) -> list[Any]:
        """Gives a value and takes those of all ranks of the group, in its order."""
        _, ranks, _ = key
        with self._lock:
            given = self._given.setdefault(key, {})
            given[rank] = value
            self._wake()
            self._wait(key, rank, lambda: self._is_complete(key))
            self._taken[key] = self._taken.get(key, 0) + 1
            if self._taken[key] == len(ranks):
                del self._given[key], self._taken[key]
            return [given[other] for other in ranks]

    def post(self, key: Key, rank: int, value: Any) -> None:
        """Gives a value to another rank, and goes on."""
        with self._lock:
            self._given[key] = {rank: value}
            self._wake()

    def receive(self, key: Key, rank: int) -> Any:
        with self._lock:
            self._wait(key, rank, lambda: self._is_complete(key))
            [value] = self._given.pop(key).values()
            return value

    def begin(self, way: Way, end: End) -> None:
        """Its rank gives or takes a message, and goes on."""
        with self._lock:
            self._links.begin(way, end)
            self._wake()

    def end(self, key: Key, end: End) -> None:
        with self._lock:
            self._wait(key, end.rank, lambda: end.is_done)

    def _wait(self, key: Key, rank: int, is_there: Callable[[], bool]) -> None:
        if not is_there():
            self._waiting[rank] = key, is_there
            self._find_deadlock()
            self._wakes[rank].wait_for(lambda: self.error or is_there())
            del self._waiting[rank]
        if self.error:
            raise Stopped

    def _wake(self) -> None:
        for rank, (_, is_there) in self._waiting.items():
            if self.error or is_there():
                self._wakes[rank].notify()

    def _is_complete(self, key: Key) -> bool:
        kind, ranks, _ = key
        return len(self._given.get(key, ())) == (1 if kind.startswith(MESSAGE) else len(ranks))

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None and not isinstance(error, Stopped):
                self.error = error
            self._wake()

    def leave(self, rank: int) -> None:
        with self._lock:
            self._left.add(rank)
            self._find_deadlock()

    def _find_deadlock(self) -> None:
        """Nobody runs any more, and nobody's group is complete."""
        if self.error or not self._waiting or len(self._waiting) + len(self._left) < self.world:
            return
        if any(is_there() for _, is_there in self._waiting.values()):
            return
        waits = [
            f"rank {rank} waits in {kind} {number} of ranks {list(ranks)}"
            for rank, ((kind, ranks, number), _) in sorted(self._waiting.items())
        ]
        waits += [f"rank {rank} has finished" for rank in sorted(self._left)]
        self.error = RuntimeFault("SW0717", "the ranks wait for each other for ever", why="; ".join(waits))
        self._wake()


def _message(ranks: Ranks, channel: int, number: int) -> Key:
    """Apart from those of exchanges, which are numbered from 0."""
    return f"{MESSAGE} of table {channel}", ranks, number


class Moving:
    """A message at one of its ranks, over a link that buffers nothing."""

    def __init__(self, shared: LocalWorld, key: Key, end: End):
        self._shared, self._key, self._end = shared, key, end

    def wait(self) -> None:
        self._shared.end(self._key, self._end)

    def is_completed(self) -> bool:
        return self._end.is_done


class Awaited:
    """A message that is left for this rank, or will be."""

    def __init__(self, comm: LocalComm, x: Tensor, key: Key):
        self._comm, self._x, self._key = comm, x, key

    def wait(self) -> None:
        self._comm.take(self._x, self._key)


class LocalComm:
    """One rank's end of a `LocalWorld`."""

    def __init__(self, shared: LocalWorld, rank: int, device: torch.device | str = "cpu"):
        self._shared = shared
        self.rank, self.world = rank, shared.world
        self.device = torch.device(device)
        self._count: dict[tuple[bool, Ranks], int] = {}
        self._connected: set[tuple[Line, Pair]] = set()
        self._models = count()

    @property
    def joined(self) -> int:
        return joined_on(self.device)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def prepare(
        self,
        groupings: Sequence[Sequence[Sequence[int]]],
        lines: Lines | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        self.barrier()
        for at, pair in first_uses(lines or {}, self.rank):
            self._connect(at, pair)

    def all_reduce(self, x: Tensor, ranks: Ranks, op: str) -> Work:
        parts = self._meet("all_reduce", ranks, x.clone())
        self._same_shape("all_reduce", ranks, parts)
        total = parts[0].clone()
        for part in parts[1:]:
            total = COMBINE[op](total, part)
        x.copy_(total)
        return Done()

    def all_gather(self, rows: Tensor, x: Tensor, ranks: Ranks) -> Work:
        parts = self._meet("all_gather", ranks, x.clone())
        self._same_shape("all_gather", ranks, parts)
        for row, part in zip(rows, parts, strict=True):
            row.copy_(part)
        return Done()

    def reduce_scatter(self, out: Tensor, rows: Tensor, ranks: Ranks) -> Work:
        parts = self._meet("reduce_scatter", ranks, rows.clone())
        self._same_shape("reduce_scatter", ranks, parts)
        place = ranks.index(self.rank)
        out.copy_(parts[0][place])
        for part in parts[1:]:
            out += part[place]
        return Done()

    def all_to_all(self, out: list[Tensor], pieces: list[Tensor], ranks: Ranks) -> None:
        given = self._meet("all_to_all", ranks, [piece.clone() for piece in pieces])
        parts = [theirs[ranks.index(self.rank)].reshape(-1) for theirs in given]
        for target, part in zip(out, parts, strict=True):
            self._same_shape("all_to_all", ranks, [target, part])
            target.copy_(part)

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        keys = {peer: self._next(MESSAGE, (self.rank, peer)) for peer in sends}
        works: list[Work] = [self._sent(x, keys[peer], APART) for peer, x in sends.items()]
        keys = {peer: self._next(MESSAGE, (peer, self.rank)) for peer in receives}
        works += [self._received(x, keys[peer], APART) for peer, x in receives.items()]
        for work in works:
            work.wait()

    def send(self, x: Tensor, peer: int, channel: int, number: int) -> Sent:
        self._connect(line(self.rank, peer, channel), (self.rank, peer))
        return self._sent(x, _message((self.rank, peer), channel, number), channel)

    def receive(self, x: Tensor, peer: int, channel: int, number: int) -> Work:
        self._connect(line(peer, self.rank, channel), (peer, self.rank))
        return self._received(x, _message((peer, self.rank), channel, number), channel)

    def _connect(self, at: Line, pair: Pair) -> None:
        if self._shared.lazy and (at, pair) not in self._connected:
            self._connected.add((at, pair))
            self._shared.meet((f"the first use of line {at}", pair, 0), self.rank, None)

    def _sent(self, x: Tensor, key: Key, channel: int) -> Sent:
        if self._shared.rendezvous:
            return self._begun(x, key, channel)
        self._shared.post(key, self.rank, x.clone())
        return Done()

    def _received(self, x: Tensor, key: Key, channel: int) -> Work:
        if self._shared.rendezvous:
            return self._begun(x, key, channel)
        return Awaited(self, x, key)

    def take(self, x: Tensor, key: Key) -> None:
        theirs = self._shared.receive(key, self.rank)
        self._same_shape(MESSAGE, key[1], [x, theirs])
        x.copy_(theirs)

    def _begun(self, x: Tensor, key: Key, channel: int) -> Moving:
        _, (sender, receiver), number = key
        end = End(self.rank, sender == self.rank, number, x)
        low, high = sorted((sender, receiver))
        self._shared.begin((low, high, line(sender, receiver, channel)), end)
        return Moving(self._shared, key, end)

    def broadcast(self, x: Tensor, source: int) -> None:
        x.copy_(self._meet("broadcast", self._everyone, x.clone())[source])

    def hand(self, message: bytes | None) -> bytes:
        handed: bytes = self._meet("hand", self._everyone, message)[0]
        return handed

    def gather_objects(self, value: Any) -> list[Any] | None:
        values = self._meet("gather_objects", self._everyone, value)
        return values if self.rank == 0 else None

    def tally(self, numbers: Sequence[int], what: str) -> list[int]:
        return [sum(column) for column in zip(*self._meet("tally", self._everyone, numbers), strict=True)]

    def rows(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        return [list(row) for row in self._meet("rows", self._everyone, numbers)]

    def all_gather_objects(self, value: Any) -> list[Any]:
        return self._meet("all_gather_objects", self._everyone, value)

    @property
    def identity(self) -> Hashable:
        """A rank that is alone is the process; a model without ranks makes one for each call."""
        return "this process" if self.world == 1 else (id(self._shared), self.rank)

    def leave(self, name: str, note: bytes) -> None:
        self._shared.notes[name] = note

    def look(self, name: str) -> bytes | None:
        return self._shared.notes.get(name)

    def count_model(self) -> int:
        return next(self._models)

    def barrier(self) -> None:
        self._meet("barrier", self._everyone, None)

    @property
    def _everyone(self) -> Ranks:
        return tuple(range(self.world))

    def _meet(self, kind: str, ranks: Ranks, value: Any) -> list[Any]:
        return self._shared.meet(self._next(kind, ranks), self.rank, value)

    def _next(self, kind: str, ranks: Ranks) -> Key:
        """Meetings of the same ranks are numbered, and so are messages from one rank to another."""
        counter = (kind == MESSAGE, ranks)
        self._count[counter] = number = self._count.get(counter, -1) + 1
        return kind, ranks, number

    def _same_shape(self, kind: str, ranks: Ranks, parts: list[Tensor]) -> None:
        kinds = {None if part is None else (tuple(part.shape), part.dtype) for part in parts}
        if len(kinds) > 1:
            raise RuntimeFault(
                "SW0717", f"ranks {list(ranks)} give different shapes to one {kind}", why=str(kinds)
            )
