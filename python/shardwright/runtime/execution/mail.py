"""What one block makes and a later one reads, on this rank or others: sent at once, awaited where it is read.

A message is known by the table that says what is in it, and its micro-batch. Nobody waits who sends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..communication.comm import Comm, Work
from .exchange import Part, made, pieces_to

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
        own = [place.of_whole(xs[source]) for source, place in part.sends.get(comm.rank, [])]
        if own:
            self._own[number, batch] = own
        for peer, message in pieces_to(part, xs, comm.rank).items():
            self._leaving.append((comm.send(message, peer, number, batch), message))

    def receive(self, part: Part, number: int, batch: int, dtype: torch.dtype) -> list[Tensor]:
        comm = self._comm
        messages = {
            peer: torch.empty(sum(sizes), dtype=dtype, device=comm.device)
            for peer, sizes in part.receives.items()
            if peer != comm.rank
        }
        works = [
            comm.receive(message, peer, number, batch)
            for peer, message in messages.items()
            if message.numel()
        ]
        for work in works:
            work.wait()
        found: dict[int, Sequence[Tensor]] = {comm.rank: self._own.pop((number, batch), [])}
        for peer, message in messages.items():
            found[peer] = torch.split_with_sizes(message, part.receives[peer])
        return made(comm, part, found, dtype)

    def clear(self) -> None:
        """At the end of a step all has arrived."""
        for work, _ in self._leaving:
            work.wait()
        self._leaving = []
