"""What one block makes and a later one reads, on this rank or others: sent at once, awaited where it is read.

A message is known by the table that says what is in it, and its micro-batch. Nobody waits who sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..communication.comm import Comm
from ..communication.works import Sent, Work
from .exchange import Part, made, nonempty, own_pieces, pieces_to, room_for

Message = tuple[int, int]


@dataclass
class Coming:
    """What others send in one table, on its way into these buffers."""

    messages: dict[int, Tensor]
    works: list[Work]


class Mail:
    def __init__(self, comm: Comm):
        self.comm = comm
        # What was asked for before it is read.
        self._coming: dict[Message, Coming] = {}
        # What is on its way from here: it must stay as it is. Gloo knows of nothing that it has arrived.
        self._leaving: list[tuple[Sent, Tensor]] = []
        # The same, of steps that go on: who gets it may come for it in the next one.
        self._later: list[tuple[Sent, Tensor]] = []
        # What this rank sent to itself, by table and micro-batch.
        self._own: dict[Message, list[Tensor]] = {}

    def send(self, part: Part, number: int, batch: int, xs: Sequence[Tensor]) -> None:
        comm = self.comm
        self._leaving = [one for one in self._leaving if not one[0].is_completed()]
        if pieces := own_pieces(part, xs, comm.rank):
            self._own[number, batch] = pieces
        for peer, message in pieces_to(part, xs, comm.rank).items():
            self._leaving.append((comm.send(message, peer, number, batch), message))

    def expect(self, part: Part, number: int, batch: int, dtype: torch.dtype) -> None:
        """What will be received may come meanwhile. All is asked for in the order in which it is received."""
        if (number, batch) not in self._coming:
            self._coming[number, batch] = self._asked_for(part, number, batch, dtype)

    def receive(self, part: Part, number: int, batch: int, dtype: torch.dtype) -> list[Tensor]:
        coming = self._coming.pop((number, batch), None) or self._asked_for(part, number, batch, dtype)
        for work in coming.works:
            work.wait()
        return made(self.comm, part, self._own.pop((number, batch), []), coming.messages, dtype)

    def _asked_for(self, part: Part, number: int, batch: int, dtype: torch.dtype) -> Coming:
        messages = room_for(self.comm, part, dtype)
        awaited = nonempty(messages).items()
        return Coming(messages, [self.comm.receive(x, peer, number, batch) for peer, x in awaited])

    def leave_open(self) -> None:
        """At the end of a step that goes on."""
        self._later = [one for one in (*self._later, *self._leaving) if not one[0].is_completed()]
        self._leaving = []

    def close(self) -> None:
        """At the end of the last of such steps."""
        self._leaving, self._later = [*self._later, *self._leaving], []
        self.clear()

    def clear(self) -> None:
        """At the end of a step all has arrived."""
        for work, _ in self._leaving:
            work.wait()
        self._leaving = []
