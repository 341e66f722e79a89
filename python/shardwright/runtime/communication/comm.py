"""How ranks talk: a small interface, and its implementation on `torch.distributed`.

Buffers are flat and of equal size on all ranks where the operation needs that; everything about
dims, factors and uneven pieces is done above, in `collectives`. `ranks` is always a group in the
order of its pieces. The other implementation, threads in one process, is in `local`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from . import messages, watch
from .watch import explain_once, explained, wait_for

Ranks = tuple[int, ...]
# A channel, and whether upwards from a smaller rank to a larger one.
Line = tuple[int, bool]

KEY = "shardwright/message"
# The tags of what is gathered, and of what is summed in parts.
GATHERED, SCATTERED = 1, 2
# How long the other ranks wait for rank 0's program.
PATIENCE = timedelta(hours=6)


class Work(Protocol):
    def wait(self) -> Any: ...


class Sent(Work, Protocol):
    def is_completed(self) -> bool:
        """Whether its receiver has all of it; some cannot tell before they are waited for."""


class Comm(Protocol):
    rank: int
    world: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether what one rank makes for all, rank 0, is made here."""

    def prepare(
        self, groups: Sequence[Sequence[Sequence[int]]], lines: Mapping[Line, Sequence[int]] | None = None
    ) -> None:
        """Makes all groups, and lines for messages. Every rank calls this for each program, between steps."""

    def all_reduce(self, x: Tensor, ranks: Ranks, op: str) -> Work:
        """In place, and asynchronous. `op` is sum, max or min."""

    def all_gather(self, rows: Tensor, x: Tensor, ranks: Ranks) -> Work:
        """`rows[i]` becomes the `x` of `ranks[i]`; asynchronous, as all that gives a `Work`."""

    def reduce_scatter(self, out: Tensor, rows: Tensor, ranks: Ranks) -> Work:
        """`out` becomes the sum of all ranks' row for this rank."""

    def all_to_all(self, out: list[Tensor], pieces: list[Tensor], ranks: Ranks) -> None:
        """`out[i]` becomes the piece that `ranks[i]` has for this rank."""

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        """One message for each pair of ranks."""

    def send(self, x: Tensor, peer: int, channel: int, number: int) -> Sent:
        """A message that is known by its channel and number; asynchronous."""

    def receive(self, x: Tensor, peer: int, channel: int, number: int) -> Work: ...

    def broadcast(self, x: Tensor, source: int) -> None:
        """From one rank to all of the world, in place."""

    def hand(self, message: bytes | None) -> bytes:
        """Rank 0's message, on all ranks of the world; may take as long as rank 0 takes."""

    def gather_objects(self, value: Any) -> list[Any] | None:
        """Picklable values of all ranks, in their order, on rank 0; `None` on the others."""

    def tally(self, numbers: Sequence[int]) -> list[int]:
        """Each number's sum over all ranks of the world; on the host, and gives up on ranks that left."""

    def rows(self, numbers: Sequence[int]) -> list[list[int]]:
        """As many numbers of each rank, in the order of the ranks; as `tally`."""

    def all_gather_objects(self, value: Any) -> list[Any]:
        """The plain data of all ranks, in their order; on the host."""

    def count_model(self) -> int:
        """Ranks make their models in one order, so its number names a model to all of them."""

    def barrier(self) -> None: ...


class Done:
    def wait(self) -> None:
        return None

    def is_completed(self) -> bool:
        return True


class All:
    """Several messages, with what they are sent of."""

    def __init__(self, works: Sequence[Work], sent: Tensor):
        self._works, self._sent = works, sent

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class Summed:
    """The rows of all ranks of a group, summed in their order; what has arrived is not kept for longer.

    The first that arrives does so in `out`: of two ranks nothing more is needed.
    """

    def __init__(self, works: Sequence[Work], out: Tensor, others: list[Tensor]):
        self._coming: tuple[Sequence[Work], list[Tensor]] | None = (works, others)
        self._out = out

    def wait(self) -> None:
        if self._coming is not None:
            works, others = self._coming
            for work in works:
                work.wait()
            _add_up(self._out, others)
            self._coming = None


class Sorted:
    """Rows that arrive in the order of a sorted group."""

    def __init__(self, work: Work, rows: Tensor, arrived: Tensor, order: list[int]):
        self._work, self._rows, self._arrived, self._order = work, rows, arrived, order

    def wait(self) -> None:
        self._work.wait()
        self._rows[self._order] = self._arrived


def line(sender: int, receiver: int, channel: int) -> Line:
    """Messages of a line come one behind the other. What two ranks send each other is on two: neither could
    receive before the other one has."""
    return channel, sender < receiver


OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class TorchComm:
    """`torch.distributed`: Gloo on CPUs, NCCL on GPUs. The process group must be initialised."""

    def __init__(self, device: torch.device | str | None = None, *, watch: bool = True):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = torch.device(device) if device else _default_device()
        self._groups: dict[frozenset[int], Any] = {}
        self._lines: dict[Line, tuple[frozenset[int], Any]] = {}
        self._summing: Summed | None = None
        self._tags = 1
        self._watch = watch and self.world > 1
        _comms.add(self)
        explain_once(self.rank)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def prepare(
        self, groups: Sequence[Sequence[Sequence[int]]], lines: Mapping[Line, Sequence[int]] | None = None
    ) -> None:
        everyone = frozenset(range(self.world))
        self._groups[everyone] = None
        for group in (frozenset(group) for grouping in groups for group in grouping):
            if len(group) > 1 and group not in self._groups:
                self._groups[group] = dist.new_group(sorted(group))
        lines = lines or {}
        # Programs of one model take turns, and the first one goes on with what it has.
        self._tags = max([self._tags, *(channel + 1 for channel, _ in lines)])
        if self.device.type == "cuda":
            self._make_lines(lines)
        if self.world > 1:
            _host_group()
            # NCCL wants one collective of all ranks before it sends between two of them.
            self.barrier()
        if self._watch:
            watch.watch(self.rank, self.world)
            self._watch = False

    def _make_lines(self, lines: Mapping[Line, Sequence[int]]) -> None:
        """NCCL has no tags: what it is given first arrives first, so each line is a group of its own."""
        for at, ranks in sorted(lines.items()):
            known, _ = self._lines.get(at, (frozenset(), None))
            if not known.issuperset(ranks):
                both = known.union(ranks)
                self._lines[at] = both, dist.new_group(sorted(both))

    def all_reduce(self, x: Tensor, ranks: Ranks, op: str) -> Work:
        work = dist.all_reduce(x, OPS[op], group=self._group(ranks), async_op=True)
        return work if work is not None else Done()

    def all_gather(self, rows: Tensor, x: Tensor, ranks: Ranks) -> Work:
        if self.device.type == "cpu":
            return self._sent_to_all(rows, x, ranks)
        order = _order(ranks)
        into = rows if order is None else torch.empty_like(rows)
        group = self._group(ranks)
        work = (
            dist.all_gather_into_tensor(_wire(into).view(-1), _wire(x), group=group, async_op=True) or Done()
        )
        return work if order is None else Sorted(work, rows, into, order)

    def reduce_scatter(self, out: Tensor, rows: Tensor, ranks: Ranks) -> Work:
        if self.device.type == "cpu":
            return self._sent_apart(out, rows, ranks)
        order = _order(ranks)
        given = rows if order is None else rows[order]
        return (
            dist.reduce_scatter_tensor(out, given.view(-1), group=self._group(ranks), async_op=True) or Done()
        )

    def _sent_to_all(self, rows: Tensor, x: Tensor, ranks: Ranks) -> Work:
        """Takes a third of the time of Gloo's own, which goes round in a ring."""
        each = zip(ranks, rows, strict=True)
        works = _traded(
            ((peer, row, x) for peer, row in each if peer != self.rank), self._group(ranks), GATHERED
        )
        rows[ranks.index(self.rank)].copy_(x)
        return All(works, x)

    def _sent_apart(self, out: Tensor, rows: Tensor, ranks: Ranks) -> Work:
        """Gloo's own takes three times as long, and copies what it is given, too."""
        # What arrives beside what is made of it does so for one message at a time.
        if len(ranks) > 2 and self._summing is not None:
            self._summing.wait()
        group, own = self._group(ranks), ranks.index(self.rank)
        others = [(at, peer) for at, peer in enumerate(ranks) if peer != self.rank]
        arrived = [out, *(torch.empty_like(out) for _ in others[1:])]
        trades = ((peer, row, rows[at]) for (at, peer), row in zip(others, arrived, strict=True))
        works = _traded(trades, group, SCATTERED)
        # After `out`, which is the first row or the second.
        following = [*arrived[1:]]
        following.insert(max(0, own - 1), rows[own])
        summed = Summed(works, out, following)
        if arrived[1:]:
            self._summing = summed
        return summed

    def all_to_all(self, out: list[Tensor], pieces: list[Tensor], ranks: Ranks) -> None:
        order = _order(ranks)
        at = list(range(len(ranks))) if order is None else order
        given = [_wire(pieces[i].reshape(-1)) for i in at]
        taken = [out[i] for i in at]
        size = taken[0].element_size() // given[0].element_size()
        lengths = [x.numel() * size for x in taken]
        received = torch.empty(sum(lengths), dtype=given[0].dtype, device=given[0].device)
        dist.all_to_all_single(
            received,
            torch.cat(given),
            lengths,
            [x.numel() for x in given],
            group=self._group(ranks),
        )
        for target, part in zip(taken, torch.split(received, lengths), strict=True):
            _wire(target).view(-1).copy_(part)

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        watch.count_message()
        ops = [dist.P2POp(dist.isend, x, peer) for peer, x in sorted(sends.items())]
        ops += [dist.P2POp(dist.irecv, x, peer) for peer, x in sorted(receives.items())]
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()

    def send(self, x: Tensor, peer: int, channel: int, number: int) -> Sent:
        watch.count_message()
        group = self._line(self.rank, peer, channel)
        return dist.isend(x, peer, group, self._tag(channel, number)) or Done()

    def receive(self, x: Tensor, peer: int, channel: int, number: int) -> Work:
        watch.count_message()
        group = self._line(peer, self.rank, channel)
        return dist.irecv(x, peer, group, self._tag(channel, number)) or Done()

    def _line(self, sender: int, receiver: int, channel: int) -> Any:
        return self._lines.get(line(sender, receiver, channel), (None, None))[1]

    def _tag(self, channel: int, number: int) -> int:
        """Not that of other messages, which is 0, nor those of collectives."""
        return 0 if self._lines else SCATTERED + 1 + channel + number * self._tags

    def broadcast(self, x: Tensor, source: int) -> None:
        watch.count_message()
        dist.broadcast(_wire(x), source)

    def hand(self, message: bytes | None) -> bytes:
        if self.world == 1 and message is not None:
            return message
        store = dist.distributed_c10d._get_default_store()
        key = f"{KEY}/{_count()}"
        if message is not None:
            store.set(key, message)  # type: ignore[arg-type]
            return message
        # Capturing and planning a large model takes its time; a rank 0 that dies is noticed elsewhere.
        with explained():
            store.wait([key], PATIENCE)
            return store.get(key)

    def gather_objects(self, value: Any) -> list[Any] | None:
        if self.world == 1:
            return [value]
        with explained():
            return messages.gathered(value, _host_group(), first=self.rank == 0)

    def tally(self, numbers: Sequence[int]) -> list[int]:
        sums = torch.tensor(numbers, dtype=torch.int64)
        with explained():
            wait_for(dist.all_reduce(sums, group=_host_group(), async_op=True))
        return sums.tolist()

    def rows(self, numbers: Sequence[int]) -> list[list[int]]:
        width = len(numbers)
        everyone = [0] * (self.world * width)
        everyone[self.rank * width : (self.rank + 1) * width] = numbers
        found = self.tally(everyone) if self.world > 1 else everyone
        return [found[start : start + width] for start in range(0, len(found), max(width, 1))]

    def all_gather_objects(self, value: Any) -> list[Any]:
        with explained():
            return messages.all_gathered(value, _host_group())

    def count_model(self) -> int:
        return next(_models)

    def barrier(self) -> None:
        dist.all_reduce(torch.zeros(1, device=self.device))

    def let_go(self) -> None:
        """Its groups end as soon as nobody else holds them."""
        self._groups.clear()
        self._lines.clear()

    def _group(self, ranks: Ranks) -> Any:
        watch.count_message()
        return self._groups[frozenset(ranks)]


def let_go() -> None:
    """For the end of the process: a group that is still held keeps its threads."""
    global _host
    _host = (None, None)
    for comm in list(_comms):
        comm.let_go()


_comms: weakref.WeakSet[TorchComm] = weakref.WeakSet()

_messages = 0
_models = count()


def _count() -> int:
    """All ranks hand messages over in the same order, so the number names the message."""
    global _messages
    _messages += 1
    return _messages


_host: tuple[Any, Any] = (None, None)


def _host_group() -> Any:
    """All ranks, on Gloo whatever the backend; made at the first call, which all ranks make together."""
    global _host
    if _host[0] is not dist.group.WORLD:
        _host = (dist.group.WORLD, dist.new_group(backend="gloo", timeout=PATIENCE))
    return _host[1]


def _default_device() -> torch.device:
    if dist.get_backend() != "nccl":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _traded(trades: Iterable[tuple[int, Tensor, Tensor]], group: Any, tag: int) -> list[Any]:
    """With each peer: what comes from there, and what goes there."""
    works: list[Any] = []
    for peer, comes, goes in trades:
        works.append(dist.irecv(_wire(comes), peer, group, tag))
        works.append(dist.isend(_wire(goes), peer, group, tag))
    return works


def _add_up(out: Tensor, others: Sequence[Tensor]) -> None:
    """A sum of several in a narrow type is rounded once."""
    narrow = len(others) > 1 and out.dtype in (torch.bfloat16, torch.float16)
    total = out.float() if narrow else out
    for row in others:
        total.add_(row)
    if narrow:
        out.copy_(total)


def _order(ranks: Ranks) -> list[int] | None:
    """PyTorch sorts the ranks of a group: where the sorted ranks stand in ours, if elsewhere."""
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    return None if order == list(range(len(ranks))) else order


def _wire(x: Tensor) -> Tensor:
    """Bytes for a type that no backend moves."""
    return x.view(torch.uint8) if x.dtype == torch.int16 else x
