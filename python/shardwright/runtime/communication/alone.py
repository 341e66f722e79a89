"""One rank of a plan of many, by itself: to look at what that rank does, without the others.

All other ranks are taken to say what this one says, and to give what it gives. What they would give that
nobody here knows is memory of the right kind, in zeros. So a step runs as on that rank, with the same
operators, messages and memory, and its numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from .comm import Ranks, joined_on
from .groups import Lines
from .works import Done, Sent, Work


class Alone:
    """The end of a rank of a world in which nobody else is."""

    # What rank 0 makes for all, each of them has to make for itself.
    leads = True

    def __init__(self, rank: int, world: int, device: torch.device | str = "cpu"):
        if not 0 <= rank < world:
            raise ValueError(f"there is no rank {rank} among {world}")
        self.rank, self.world, self.device = rank, world, torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            # As tensors have it, and every other communicator.
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._models = count()
        self._notes: dict[str, bytes] = {}

    @property
    def joined(self) -> int:
        return joined_on(self.device)

    def prepare(
        self,
        groupings: Sequence[Sequence[Sequence[int]]],
        lines: Lines | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        return None

    def all_reduce(self, x: Tensor, ranks: Ranks, op: str) -> Work:
        """Of a sum it is this rank's share."""
        return Done()

    def all_gather(self, rows: Tensor, x: Tensor, ranks: Ranks) -> Work:
        rows.copy_(x.expand_as(rows))
        return Done()

    def reduce_scatter(self, out: Tensor, rows: Tensor, ranks: Ranks) -> Work:
        out.copy_(rows[ranks.index(self.rank)])
        return Done()

    def all_to_all(self, out: list[Tensor], pieces: list[Tensor], ranks: Ranks) -> None:
        """Where pieces are of one size, each rank's for this one is what it has for itself: so many rows are
        told of as come."""
        piece = pieces[ranks.index(self.rank)].reshape(-1)
        for target in out:
            if target.numel() == piece.numel():
                target.copy_(piece.view(target.shape))
            else:
                target.zero_()

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        for x in receives.values():
            x.zero_()

    def send(self, x: Tensor, peer: int, channel: int, number: int) -> Sent:
        return Done()

    def receive(self, x: Tensor, peer: int, channel: int, number: int) -> Work:
        x.zero_()
        return Done()

    def broadcast(self, x: Tensor, source: int) -> None:
        if source != self.rank:
            x.zero_()

    def hand(self, message: bytes | None) -> bytes:
        assert message is not None, "what rank 0 makes is made here"
        return message

    def gather_objects(self, value: Any) -> list[Any] | None:
        return [value] * self.world

    def tally(self, numbers: Sequence[int], what: str) -> list[int]:
        return [self.world * number for number in numbers]

    def all_gather_objects(self, value: Any) -> list[Any]:
        return [value] * self.world

    def rows(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        return [list(numbers)] * self.world

    @property
    def identity(self) -> Hashable:
        return id(self)

    def leave(self, name: str, note: bytes) -> None:
        self._notes[name] = note

    def look(self, name: str) -> bytes | None:
        """What this rank says, every other one does."""
        start, _, last = name.rpartition("/")
        return self._notes.get(f"{start}/{self.rank}" if last.isdigit() else name)

    def count_model(self) -> int:
        return next(self._models)

    def barrier(self) -> None:
        return None
