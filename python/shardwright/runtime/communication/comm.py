"""How ranks talk: a small interface, and its implementation on `torch.distributed`.

Buffers are flat and of equal size on all ranks where the operation needs that; everything about
dims, factors and uneven pieces is done above, in `collectives`. `ranks` is always a group in the
order of its pieces. The other implementation, threads in one process, is in `local`.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from . import devices, groups, messages, watch
from .devices import DeviceLike
from .groups import Group, Kind, Line, Lines, line
from .places import place_of
from .verdicts import crossed
from .watch import explain_once, explained, wait_for
from .wires import added, moved, placed
from .works import All, Done, Sent, Sorted, Summed, Work

Ranks = tuple[int, ...]

KEY = "shardwright/message"
# The tags of what is gathered, and of what is summed in parts.
GATHERED, SCATTERED = 1, 2
# How long the other ranks wait for rank 0's program.
PATIENCE = timedelta(hours=6)


# The most elements of each rank that Gloo is given joined with others: to copy more takes longer.
JOINED = 1 << 16
NO_LIMIT = 1 << 62


class Comm(Protocol):
    rank: int
    world: int
    device: torch.device

    @property
    def joined(self) -> int:
        """Of what has no more elements of each rank, several travel as one message; what has more travels by
        itself, as it lies."""

    @property
    def leads(self) -> bool:
        """Whether what one rank makes for all, rank 0, is made here."""

    def prepare(
        self,
        groupings: Sequence[Sequence[Sequence[int]]],
        lines: Lines | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        """Makes all groups, and lines for messages, with who sends to whom on them. Every rank calls this for
        each program, between steps. Messages of one that `goes_on` may be under way between steps, and meet
        those of no other."""

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

    def tally(self, numbers: Sequence[int], what: str) -> list[int]:
        """Each number's sum over all ranks of the world; on the host, and gives up on ranks that left.

        `what` it is for is the same on all ranks: one that is elsewhere is told by it.
        """

    def rows(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        """As many numbers of each rank, in the order of the ranks; as `tally`."""

    def all_gather_objects(self, value: Any) -> list[Any]:
        """The plain data of all ranks, in their order; on the host."""

    @property
    def identity(self) -> Hashable:
        """The same for all that talk for one rank."""

    def leave(self, name: str, note: bytes) -> None:
        """For whoever looks for it, on any rank; of this and `look` any thread may make use."""

    def look(self, name: str) -> bytes | None:
        """A note that somebody has left; waits for nobody."""

    def count_model(self) -> int:
        """Ranks make their models in one order, so its number names a model to all of them."""

    def barrier(self) -> None: ...


# Ranks whose numbers Gloo adds up in a ring as quickly as in pairs.
FEW = 8
# So many numbers go first, whatever is summed.
FIRST = 16
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Of(NamedTuple):
    """What is known of ranks that talk: their group, and where its order has those of ours, if elsewhere."""

    handle: Any
    order: list[int] | None


class TorchComm:
    """`torch.distributed`: Gloo on CPUs, NCCL on GPUs. The process group must be initialised."""

    def __init__(self, device: DeviceLike = None, *, watch: bool = True, timeout: timedelta | None = None):
        """`timeout` is for the groups that it makes: how long one of their communications may take."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        backends = devices.backends_here()
        self.device = devices.take(device, place_of(), backends)
        # It has no tags, and its collectives of single tensors are the quick ones.
        self._as_nccl = self.device.type == "cuda"
        # Of several backends groups have only that of the device.
        backend = backends.get(self.device.type) if len(set(backends.values())) > 1 else None
        self._kind = Kind(backend, timeout)
        # Also when the process group has been taken down.
        self._store = dist.distributed_c10d._get_default_store()
        self._groups: dict[Ranks, Of] = {}
        self._members: dict[frozenset[int], Group] = {}
        self._lines: dict[Line, Group] = {}
        self._letters: Group | None = None
        self._owner: str | None = None
        self._summing: Summed | None = None
        self._tags = 1
        self._watch = watch and self.world > 1
        _comms.add(self)
        explain_once(self.rank)

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
        everyone = frozenset(range(self.world))
        self._members[everyone] = Group(everyone, None)
        wanted = dict.fromkeys(frozenset(group) for grouping in groupings for group in grouping)
        made = [self._make(group) for group in wanted if len(group) > 1]
        lines = lines or {}
        # Programs of one model take turns, and the first one goes on with what it has.
        self._tags = max([self._tags, *(channel + 1 for channel, _ in lines)])
        if goes_on and self._owner is None:
            self._owner = f"of model {next(_owners)}"
        if self._as_nccl:
            self._make_lines(lines)
        elif self._owner and lines:
            self._letters, _ = groups.group_of(everyone, replace(self._kind, use=self._owner))
        if self.world > 1:
            _host_group()
            # NCCL wants one collective of all ranks before it sends between two of them.
            with devices.one_each():
                self.barrier()
        if self._as_nccl:
            self._use_once([group for group in made if group], lines)
        if self._watch:
            watch.watch(self.rank, self.world)
            self._watch = False

    @property
    def communicators(self) -> int:
        """How many groups this process has a part in, of all models: on NCCL each has memory of its own."""
        return 1 + groups.count(self.rank)

    def _make(self, members: frozenset[int]) -> Group | None:
        """What is new for this process."""
        if members in self._members:
            return None
        self._members[members], is_new = groups.group_of(members, self._kind)
        return self._members[members] if is_new else None

    def _make_lines(self, lines: Lines) -> None:
        """NCCL has no tags: what it is given first arrives first, so each line is a group of its own."""
        for at, pairs in sorted(lines.items()):
            ranks = frozenset(rank for pair in pairs for rank in pair)
            known = self._lines.get(at)
            if known is None or not known.members >= ranks:
                both = ranks if known is None else known.members | ranks
                use = f"line {at[0]} {'up' if at[1] else 'down'} {self._owner or ''}"
                self._lines[at], _ = groups.group_of(both, replace(self._kind, use=use))

    def _use_once(self, made: Sequence[Group], lines: Lines) -> None:
        """All that is new, in one order on all ranks: NCCL connects where it is first used, and waits."""
        one = torch.zeros(1, device=self.device)
        for group in sorted(made, key=lambda group: sorted(group.members)):
            if self.rank in group.members:
                dist.all_reduce(one, group=group.handle)
        for at, pair in groups.first_uses(lines, self.rank):
            group = self._lines[at]
            if pair not in group.pairs:
                group.pairs.add(pair)
                sender, receiver = pair
                if sender == self.rank:
                    dist.send(one, receiver, group.handle)
                else:
                    dist.recv(one, sender, group.handle)

    def all_reduce(self, x: Tensor, ranks: Ranks, op: str) -> Work:
        sent, op = added(x, op)
        work = dist.all_reduce(sent, OPS[op], group=self._group(ranks).handle, async_op=True)
        return placed(work if work is not None else Done(), x, sent)

    def all_gather(self, rows: Tensor, x: Tensor, ranks: Ranks) -> Work:
        if not self._as_nccl:
            return self._sent_to_all(rows, x, ranks)
        handle, order = self._group(ranks)
        into = rows if order is None else torch.empty_like(rows)
        work = (
            dist.all_gather_into_tensor(moved(into).view(-1), moved(x), group=handle, async_op=True) or Done()
        )
        return work if order is None else Sorted(work, rows, into, order)

    def reduce_scatter(self, out: Tensor, rows: Tensor, ranks: Ranks) -> Work:
        if not self._as_nccl:
            return self._sent_apart(out, rows, ranks)
        handle, order = self._group(ranks)
        given, op = added(rows if order is None else torch.stack([rows[at] for at in order]), "sum")
        made, _ = added(out, "sum")
        work = dist.reduce_scatter_tensor(made.view(-1), given.view(-1), OPS[op], group=handle, async_op=True)
        return placed(work or Done(), out, made)

    def _sent_to_all(self, rows: Tensor, x: Tensor, ranks: Ranks) -> Work:
        """Takes a third of the time of Gloo's own, which goes round in a ring."""
        each = zip(ranks, rows, strict=True)
        works = _traded(
            ((peer, row, x) for peer, row in each if peer != self.rank), self._group(ranks).handle, GATHERED
        )
        rows[ranks.index(self.rank)].copy_(x)
        return All(works, x)

    def _sent_apart(self, out: Tensor, rows: Tensor, ranks: Ranks) -> Work:
        """Gloo's own takes three times as long, and copies what it is given, too."""
        # What arrives beside what is made of it does so for one message at a time.
        if len(ranks) > 2 and self._summing is not None:
            self._summing.wait()
        group, place = self._group(ranks).handle, ranks.index(self.rank)
        others = [(at, peer) for at, peer in enumerate(ranks) if peer != self.rank]
        arrived = [out, *(torch.empty_like(out) for _ in others[1:])]
        trades = ((peer, row, rows[at]) for (at, peer), row in zip(others, arrived, strict=True))
        works = _traded(trades, group, SCATTERED)
        # After `out`, which is the first row or the second.
        following = [*arrived[1:]]
        following.insert(max(0, place - 1), rows[place])
        summed = Summed(works, out, following)
        if arrived[1:]:
            self._summing = summed
        return summed

    def all_to_all(self, out: list[Tensor], pieces: list[Tensor], ranks: Ranks) -> None:
        handle, order = self._group(ranks)
        at = list(range(len(ranks))) if order is None else order
        given = [moved(pieces[i].reshape(-1)) for i in at]
        taken = [out[i] for i in at]
        size = taken[0].element_size() // given[0].element_size()
        lengths = [x.numel() * size for x in taken]
        received = torch.empty(sum(lengths), dtype=given[0].dtype, device=given[0].device)
        dist.all_to_all_single(
            received,
            torch.cat(given),
            lengths,
            [x.numel() for x in given],
            group=handle,
        )
        for target, part in zip(taken, torch.split(received, lengths), strict=True):
            moved(target).view(-1).copy_(part)

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        watch.count_message()
        ops = [dist.P2POp(dist.isend, moved(x), peer) for peer, x in sorted(sends.items())]
        ops += [dist.P2POp(dist.irecv, moved(x), peer) for peer, x in sorted(receives.items())]
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()

    def send(self, x: Tensor, peer: int, channel: int, number: int) -> Sent:
        watch.count_message()
        group = self._line(self.rank, peer, channel)
        return dist.isend(moved(x), peer, group, self._tag(channel, number)) or Done()

    def receive(self, x: Tensor, peer: int, channel: int, number: int) -> Work:
        watch.count_message()
        group = self._line(peer, self.rank, channel)
        return dist.irecv(moved(x), peer, group, self._tag(channel, number)) or Done()

    def _line(self, sender: int, receiver: int, channel: int) -> Any:
        channel_group = self._lines.get(line(sender, receiver, channel), self._letters)
        return None if channel_group is None else channel_group.handle

    def _tag(self, channel: int, number: int) -> int:
        """Not that of other messages, which is 0, nor those of collectives."""
        return 0 if self._lines else SCATTERED + 1 + channel + number * self._tags

    def broadcast(self, x: Tensor, source: int) -> None:
        watch.count_message()
        dist.broadcast(moved(x), source)

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

    def tally(self, numbers: Sequence[int], what: str) -> list[int]:
        # Where ranks give Gloo different sizes it waits for ever, or ends the process. So as many numbers as
        # always go first, and the others once it is seen that all ranks are here.
        mark = zlib.crc32(f"{what} {len(numbers)}".encode())
        head, rest = numbers[: FIRST - 1], numbers[FIRST - 1 :]
        with watch.outside_calls(what), explained():
            marks, *sums = self._summed([mark, *head] + [0] * (FIRST - 1 - len(head)))
            if marks != self.world * mark:
                raise crossed(self.all_gather_objects(watch.here(what)))
            return sums[: len(head)] + (self._summed(rest) if rest else [])

    def _summed(self, numbers: Sequence[int]) -> list[int]:
        sums = torch.tensor(numbers, dtype=torch.int64)
        if self.world > FEW:
            return messages.total(sums, _host_group(), self.rank, self.world).tolist()
        wait_for(dist.all_reduce(sums, group=_host_group(), async_op=True))
        return sums.tolist()

    def rows(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        width = len(numbers)
        everyone = [0] * (self.world * width)
        everyone[self.rank * width : (self.rank + 1) * width] = numbers
        counted = self.tally(everyone, what) if self.world > 1 else everyone
        return [counted[start : start + width] for start in range(0, len(counted), max(width, 1))]

    def all_gather_objects(self, value: Any) -> list[Any]:
        with explained():
            return messages.all_gathered(value, _host_group())

    @property
    def identity(self) -> Hashable:
        return "this process"

    def leave(self, name: str, note: bytes) -> None:
        self._store.set(f"{KEY}/{name}", note)  # type: ignore[arg-type]

    def look(self, name: str) -> bytes | None:
        key = f"{KEY}/{name}"
        return self._store.get(key) if self._store.check([key]) else None

    def count_model(self) -> int:
        return next(_models)

    def barrier(self) -> None:
        dist.all_reduce(torch.zeros(1, device=self.device))

    def let_go(self) -> None:
        """Its groups end as soon as nobody else holds them."""
        self._groups.clear()
        self._members.clear()
        self._lines.clear()
        self._letters = None

    def _group(self, ranks: Ranks) -> Of:
        watch.count_message()
        known = self._groups.get(ranks)
        if known is None:
            self._groups[ranks] = known = Of(self._members[frozenset(ranks)].handle, _order(ranks))
        return known


def joined_on(device: torch.device) -> int:
    """On a GPU a message costs the host more than any copy."""
    return JOINED if device.type == "cpu" else NO_LIMIT


def let_go() -> None:
    """For the end of the process: a group that is still held keeps its threads."""
    global _host
    _host = (None, None)
    groups.let_go()
    for comm in list(_comms):
        comm.let_go()


_comms: weakref.WeakSet[TorchComm] = weakref.WeakSet()

_messages = 0
_models = count()
_owners = count()


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


def _traded(trades: Iterable[tuple[int, Tensor, Tensor]], group: Any, tag: int) -> list[Any]:
    """With each peer: what comes from there, and what goes there."""
    works: list[Any] = []
    for peer, comes, goes in trades:
        works.append(dist.irecv(moved(comes), peer, group, tag))
        works.append(dist.isend(moved(goes), peer, group, tag))
    return works


def _order(ranks: Ranks) -> list[int] | None:
    """PyTorch sorts the ranks of a group: where the sorted ranks stand in ours, if elsewhere."""
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    return None if order == list(range(len(ranks))) else order
