"""What one block makes and a later one reads, on this rank or others: sent at once, awaited where it is read.

A message is known by the table that says what is in it, and its micro-batch. Nobody waits who sends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..communication.comm import Comm, Work
from .exchange import Part, made, nonempty, own_pieces, pieces_to, room_for

Message = tuple[int, int]


class Mail:
    def __init__(self, comm: Comm):
        self._comm = comm
        # What is on its way from here: it must stay as it is.
        self._leaving: list[tuple[Work, Tensor]] = []
        # What this rank sent to itself, by table and micro-batch.
        self._own: dict[Message, list[Tensor]] = {}

    def send(self, part: Part, number: int, batch: int, xs: Sequence[Tensor]) -> None:
        comm = self._comm
        if own := own_pieces(part, xs, comm.rank):
            self._own[number, batch] = own
        for peer, message in pieces_to(part, xs, comm.rank).items():
            self._leaving.append((comm.send(message, peer, number, batch), message))

    def receive(self, part: Part, number: int, batch: int, dtype: torch.dtype) -> list[Tensor]:
        comm = self._comm
        messages = room_for(comm, part, dtype)
        awaited = nonempty(messages).items()
        for work in [comm.receive(message, peer, number, batch) for peer, message in awaited]:
            work.wait()
        return made(comm, part, self._own.pop((number, batch), []), messages, dtype)

    def clear(self) -> None:
        """At the end of a step all has arrived."""
        for work, _ in self._leaving:
            work.wait()
        self._leaving = []
