"""Parameters that ranks divide among them, or that live on the host, on their way while other code runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from ..communication.comm import Comm, Ranks
from ..communication.works import Done, Work
from ..guards.part_gradients import writable
from ..shards.copies import Copy
from .away import Host
from .buckets import gradient_of
from .collectives import TOGETHER

# Of a copy.
Leaf = tuple[Copy, Tensor]


class Gathering:
    """Copies of one dtype; they are there after `wait`."""

    def __init__(self, comm: Comm, copies: Sequence[Copy], ranks: Ranks, host: Host):
        self.leaves = {id(leaf) for copy in copies for leaf in copy.leaves}
        self._host = host
        self._arriving: list[tuple[list[Copy], bool, Tensor, Work]] = []
        messages = apart(copies, lambda copy: copy) if len(ranks) > 1 else []
        # Memory that others read is had before, from where they get theirs.
        rooms = [(message, *_room(message, len(ranks))) for message in messages]
        alone = [] if messages else copies
        for copy in alone:
            copy.place()
        with host.beside() if any(copy.on_host for copy in copies) else nullcontext():
            for copy in alone:
                copy.bring()
            for message, in_place, rows in rooms:
                own = joined([copy.own() for copy in message])
                self._arriving.append((message, in_place, rows, comm.all_gather(rows, own, ranks)))
            self._event = host.mark() if alone else None

    def wait(self) -> None:
        self._host.wait(self._event)
        for message, in_place, rows, work in self._arriving:
            work.wait()
            if not in_place:
                parts = rows.split([copy.width for copy in message], 1)
                for copy, own in zip(message, parts, strict=True):
                    copy.fill(own)


def _room(message: Sequence[Copy], ranks: int) -> tuple[bool, Tensor]:
    """For a row of each rank; one whose parts follow each other arrives where it belongs."""
    first, *others = message
    width = sum(copy.width for copy in message)
    if not others and first.cut.joins_flat:
        return True, first.place().view(ranks, width)
    return False, first.empty(ranks, width)


class Scattering:
    """Gradients of leaves of one dtype, summed into the parts of a group's ranks."""

    def __init__(self, comm: Comm, leaves: Sequence[Leaf], ranks: Ranks, dtype: torch.dtype):
        self._arriving: list[tuple[list[Leaf], Tensor, Work]] = []
        for message in apart(leaves, lambda leaf: leaf[0]):
            rows = [copy.rows(gradient_of(leaf).to(dtype)) for copy, leaf in message]
            sent = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
            if len(ranks) == 1:
                self._arriving.append((message, sent[0], Done()))
                continue
            out = sent.new_empty(sent.shape[1])
            self._arriving.append((message, out, comm.reduce_scatter(out, sent, ranks)))

    def wait(self) -> list[tuple[Copy, Tensor]]:
        found = []
        for message, out, work in self._arriving:
            work.wait()
            rows = out.split([copy.width for copy, _ in message])
            parts = zip(message, rows, strict=True)
            found += [(copy, writable(copy.part(row))) for (copy, _), row in parts]
        return found


Item = TypeVar("Item")


def apart(items: Sequence[Item], copy_of: Callable[[Item], Copy]) -> list[list[Item]]:
    """Messages: large ones that need not be copied together travel by themselves."""
    large = [item for item in items if is_large(copy_of(item))]
    small = [item for item in items if not is_large(copy_of(item))]
    return [[item] for item in large] + ([small] if small else [])


def is_large(copy: Copy) -> bool:
    return copy.cut.joins_flat and copy.width > TOGETHER


def joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
