"""A stand-in for devices on which results arrive when they are waited for, and no sooner.

What a collective gives is not a number until somebody waits for it; what is given to it must be the same
then. Two that are under way have no memory in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from shardwright.runtime import LocalComm, run_local


class Late:
    """One rank's end: a `LocalComm` around which nothing is there before it is waited for."""

    def __init__(
        self,
        comm: LocalComm,
        ended: list[int],
        forgets: bool = False,
        kinds: set[str] | None = None,
        joined: int | None = None,
    ):
        self._comm, self._ended, self._forgets = comm, ended, forgets
        self.joined = comm.joined if joined is None else joined
        self._kinds = set[str]() if kinds is None else kinds
        self.under_way: list[Work] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def all_reduce(self, x: Tensor, ranks: Any, op: str) -> Work:
        return self._begun("all_reduce", [x], [x], lambda given, made: (made[0], ranks, op), in_place=True)

    def all_gather(self, rows: Tensor, x: Tensor, ranks: Any) -> Work:
        return self._begun("all_gather", [x], [rows], lambda given, made: (made[0], given[0], ranks))

    def reduce_scatter(self, out: Tensor, rows: Tensor, ranks: Any) -> Work:
        return self._begun("reduce_scatter", [rows], [out], lambda given, made: (made[0], given[0], ranks))

    def send(self, x: Tensor, peer: int, channel: int, number: int) -> Work:
        return self._begun("send", [x], [], lambda given, made: (given[0], peer, channel, number))

    def receive(self, x: Tensor, peer: int, channel: int, number: int) -> Any:
        _spoil(x)
        work = Received(self, self._comm.receive(x, peer, channel, number), x)
        self._touch(work)
        self.under_way.append(work)
        return work

    def _begun(
        self,
        kind: str,
        given: Sequence[Tensor],
        made: Sequence[Tensor],
        arguments: Callable[[list[Tensor], list[Tensor]], tuple[Any, ...]],
        in_place: bool = False,
    ) -> Work:
        work = Work(self, kind, [] if in_place else given, made)
        self._touch(work)
        copies = [x.clone() for x in made]
        getattr(self._comm, kind)(*arguments([x.clone() for x in given], copies))
        work.results = copies
        for x in made:
            _spoil(x)
        self.under_way.append(work)
        return work

    def _touch(self, work: Work) -> None:
        for other in self.under_way:
            assert not work.touches(other), f"{work.kind} uses memory that {other.kind} is still using"

    def arrived(self, work: Work) -> None:
        self.under_way.remove(work)
        self._ended.append(self._comm.rank)
        self._kinds.add(work.kind)
        if not self._forgets:
            work.deliver()


class Work:
    def __init__(self, late: Late, kind: str, given: Sequence[Tensor], made: Sequence[Tensor]):
        self.kind, self.results = kind, list[Tensor]()
        self._late, self._given, self._made = late, list(given), list(made)
        self._before = [x.clone() for x in given]

    def touches(self, other: Work) -> bool:
        """Whether one writes what the other reads or writes."""
        ours, theirs = self._made, other._made
        pairs = [(a, b) for a in ours for b in (*theirs, *other._given)]
        return any(_overlap(a, b) for a, b in [*pairs, *((a, b) for a in theirs for b in self._given)])

    def wait(self) -> None:
        if self in self._late.under_way:
            self._late.arrived(self)

    def deliver(self) -> None:
        for x, before in zip(self._given, self._before, strict=True):
            assert torch.equal(x, before), f"what {self.kind} reads was written before it was waited for"
        for x, result in zip(self._made, self.results, strict=True):
            x.copy_(result)

    def is_completed(self) -> bool:
        return self not in self._late.under_way


class Received(Work):
    """What another rank sends arrives in memory of its own first."""

    def __init__(self, late: Late, work: Any, x: Tensor):
        super().__init__(late, "receive", [], [x])
        self._work = work

    def deliver(self) -> None:
        self._work.wait()


def late(
    forgets: bool = False, kinds: set[str] | None = None, joined: int | None = None
) -> Callable[..., list[Any]]:
    """In the place of `run_local`. If it `forgets`, waiting brings nothing. `kinds` gets those of messages
    that somebody has waited for. What is not larger than `joined` travels with others."""

    def local(world: int, fn: Callable[[int, Any], Any]) -> list[Any]:
        ended: list[int] = []

        def body(rank: int, comm: LocalComm) -> Any:
            end = Late(comm, ended, forgets, kinds, joined)
            result = fn(rank, end)
            left = [work.kind for work in end.under_way if work.kind != "send"]
            assert not left, f"nobody has waited for {left}"
            return result

        results = run_local(world, body)
        assert len(set(ended)) == world, "every rank has waited for something"
        return results

    return local


def _spoil(x: Tensor) -> None:
    x.fill_(float("nan") if x.is_floating_point() else -1)


def _overlap(a: Tensor, b: Tensor) -> bool:
    start, other = a.data_ptr(), b.data_ptr()
    ends = start + a.numel() * a.element_size(), other + b.numel() * b.element_size()
    return bool(a.numel() and b.numel() and start < ends[1] and other < ends[0])
