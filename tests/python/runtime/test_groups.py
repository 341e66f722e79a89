"""The groups of a process, and what goes through them: as NCCL takes it, on Gloo."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shardwright as sw
from shardwright.runtime import TorchComm
from shardwright.runtime.communication import comm as comm_module
from shardwright.runtime.communication import groups, messages, wires

DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
WORLD = 3
# More than a power of two, by more than one.
MANY = 7
MIXED = (2, 0, 1)
LINES = {(0, True): ((0, 1), (1, 2)), (0, False): ((1, 0),), (3, True): ((0, 2),)}


def values(rank: int, dtype: torch.dtype, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randint(0, 9, shape, generator=generator)
    return (numbers % 2).bool() if dtype == torch.bool else numbers.to(dtype)


def total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).any(0) if parts[0].dtype == torch.bool else sum(parts[1:], parts[0])


class Sent:
    """The dtypes that the operations of `torch.distributed` are given."""

    KINDS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "isend", "irecv")

    def __init__(self) -> None:
        self.dtypes: set[torch.dtype] = set()
        self.op = dist.P2POp

    def __enter__(self) -> Sent:
        self.before = {kind: getattr(dist, kind) for kind in self.KINDS}
        for kind, function in self.before.items():
            setattr(dist, kind, self._watched(function))
        dist.P2POp = lambda op, x, peer: self._watched(self.op)(self.before[op.__name__], x, peer)
        return self

    def __exit__(self, *_: Any) -> None:
        for kind, function in self.before.items():
            setattr(dist, kind, function)
        dist.P2POp = self.op

    def _watched(self, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.dtypes |= {x.dtype for x in args if isinstance(x, Tensor)}
            return function(*args, **kwargs)

        return call


def check(comm: TorchComm, dtype: torch.dtype, ranks: tuple[int, ...]) -> Iterator[bool]:
    everyone = [values(rank, dtype, WORLD, 4) for rank in ranks]
    place = ranks.index(comm.rank)
    x = everyone[place].clone()
    comm.all_reduce(x, ranks, "sum").wait()
    yield torch.equal(x, total(everyone))
    if not dtype.is_complex:
        x = everyone[place].clone()
        comm.all_reduce(x, ranks, "max").wait()
        yield torch.equal(x, torch.stack(everyone).amax(0))
    rows = everyone[place].new_empty(WORLD, 4 * WORLD)
    comm.all_gather(rows, everyone[place].view(-1), ranks).wait()
    yield torch.equal(rows, torch.stack(everyone).view(WORLD, -1))
    out = everyone[place].new_empty(4)
    comm.reduce_scatter(out, everyone[place].clone(), ranks).wait()
    yield torch.equal(out, total([x[place] for x in everyone]))
    taken = [everyone[place].new_empty(4) for _ in ranks]
    comm.all_to_all(taken, list(everyone[place]), ranks)
    yield all(torch.equal(a, x[place]) for a, x in zip(taken, everyone, strict=True))
    x = everyone[place].clone()
    comm.broadcast(x, 1)
    yield torch.equal(x, values(1, dtype, WORLD, 4))
    peers = [rank for rank in range(WORLD) if rank != comm.rank]
    received = {peer: values(0, dtype, 5).zero_() for peer in peers}
    comm.exchange({peer: values(comm.rank, dtype, 5) for peer in peers}, received)
    yield all(torch.equal(x, values(peer, dtype, 5)) for peer, x in received.items())
    for (channel, _), pairs in LINES.items():
        for sender, receiver in pairs:
            if comm.rank == sender:
                comm.send(values(sender, dtype, 5), receiver, channel, 0).wait()
            elif comm.rank == receiver:
                x = values(0, dtype, 5).zero_()
                comm.receive(x, sender, channel, 0).wait()
                yield torch.equal(x, values(sender, dtype, 5))


def _every_type(rank: int, as_nccl: bool) -> list[str]:
    comm = TorchComm(watch=False)
    comm._as_nccl = as_nccl
    comm.prepare([[[0, 1, 2]]], LINES)
    wrong = []
    with Sent() as sent:
        for dtype in DTYPES:
            for ranks in ((0, 1, 2), MIXED):
                checks = list(check(comm, dtype, ranks))
                wrong += [f"{dtype} {ranks} {checks}"] if not all(checks) else []
    moved = sent.dtypes - wires.MOVED - {torch.complex64, torch.complex128}
    everything: list[Any] = [None] * WORLD
    dist.all_gather_object(everything, (wrong, moved))
    return [*(line for lines, _ in everything for line in lines), *(str(it) for _, it in everything if it)]


@pytest.mark.processes
@pytest.mark.parametrize("as_nccl", [True, False])
def test_every_type_goes_through_every_operation_as_one_that_backends_have(as_nccl: bool) -> None:
    assert not sw.launch(_every_type, WORLD, args=(as_nccl,), backend="gloo", timeout=200)


def _two_models(rank: int) -> list[Any]:
    made: list[Any] = []
    new_group, send = dist.new_group, dist.send

    def counted(ranks: Any = None, *args: Any, **options: Any) -> Any:
        if "backend" not in options:
            made.append(ranks)
        return new_group(ranks, *args, **options)

    dist.new_group = counted
    counts = []
    used: list[Any] = []
    dist.send = lambda x, to, group: (used.append(to), send(x, to, group))
    for goes_on in (False, False, True):
        comm = TorchComm(watch=False)
        comm._as_nccl = True
        comm.prepare([[[0, 1, 2]], [[0, 1], [2]], [[1, 0], [2]]], LINES, goes_on=goes_on)
        counts.append((len(made), len(used), comm.communicators))
    return counts


@pytest.mark.processes
def test_models_share_their_groups_and_what_is_there_is_not_used_anew() -> None:
    """One for 0 and 1, and three lines; of what goes on between steps the lines are its own. Rank 0 begins
    two messages on them."""
    actual = sw.launch(_two_models, WORLD, backend="gloo", timeout=100)
    assert actual == [(4, 2, 5), (4, 2, 5), (7, 4, 8)]


def _totals(rank: int) -> list[int]:
    """The worlds of which all ranks have the sum."""
    right = []
    for world in range(1, MANY + 1):
        group = dist.new_group(range(world), backend="gloo")
        total: Any = None
        if rank < world:
            addends = torch.tensor([1 << 8 * rank, -rank])
            total = messages.total(addends, group, rank, world).tolist()
        everyone: list[Any] = [None] * MANY
        dist.all_gather_object(everyone, total)
        expected = [sum(1 << 8 * member for member in range(world)), -sum(range(world))]
        if everyone == [expected] * world + [None] * (MANY - world):
            right.append(world)
    return right


@pytest.mark.processes
def test_a_total_in_pairs_is_that_of_all() -> None:
    assert sw.launch(_totals, MANY, backend="gloo", timeout=100) == [1, 2, 3, 4, 5, 6, 7]


def _agreed(rank: int) -> list[list[int]]:
    comm_module.FEW = 2
    comm = TorchComm(watch=False)
    comm.prepare([])
    many = comm.tally([rank] * 40, "many")
    assert many == [3] * 40
    return [comm.tally([rank, 7], "a sum"), *comm.rows([rank, rank * rank], "rows")]


@pytest.mark.processes
def test_many_ranks_agree_in_pairs() -> None:
    assert sw.launch(_agreed, WORLD, backend="gloo", timeout=100) == [[3, 21], [0, 0], [1, 1], [2, 4]]


def test_groups_end_with_their_world(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(groups.dist, "new_group", lambda ranks, **options: made.append(options))
    worlds = [object(), object()]
    for world in (worlds[0], worlds[0], worlds[1]):
        monkeypatch.setattr(groups.dist, "group", SimpleNamespace(WORLD=world))
        groups.group_of([0, 1], groups.Kind("nccl", None))
    assert made == [{"backend": "nccl"}] * 2
    groups.let_go()
