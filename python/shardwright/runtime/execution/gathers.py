"""Messages about parameters that ranks divide among them, on their way while other code runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..communication.comm import Comm, Ranks
from ..guards.part_gradients import writable
from ..shards.copies import Copy
from .buckets import gradient_of

# Of a copy.
Leaf = tuple[Copy, Tensor]


class Gathering:
    """Copies of one dtype; they are there after `wait`."""

    def __init__(self, comm: Comm, copies: Sequence[Copy], ranks: Ranks):
        self.leaves = {id(leaf) for copy in copies for leaf in copy.leaves}
        self._copies = copies
        own = joined([copy.own() for copy in copies])
        first = copies[0]
        # A single one whose parts follow each other arrives where it belongs.
        self._in_place = len(copies) == 1 and first.cut.joins_flat
        if self._in_place:
            self._rows = first.place().view(len(ranks), first.width)
        else:
            self._rows = own.new_empty(len(ranks), own.numel())
        self._work = comm.all_gather(self._rows, own, ranks)

    def wait(self) -> None:
        self._work.wait()
        if not self._in_place:
            rows = self._rows.split([copy.width for copy in self._copies], 1)
            for copy, own in zip(self._copies, rows, strict=True):
                copy.fill(own)


class Scattering:
    """Gradients of leaves of one dtype, summed into the parts of a group's ranks."""

    def __init__(self, comm: Comm, own: Sequence[Leaf], ranks: Ranks, dtype: torch.dtype):
        self._copies = [copy for copy, _ in own]
        rows = [copy.rows(gradient_of(leaf).to(dtype)) for copy, leaf in own]
        sent = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
        self._out = sent.new_empty(sent.shape[1])
        self._work = comm.reduce_scatter(self._out, sent, ranks)

    def wait(self) -> list[tuple[Copy, Tensor]]:
        self._work.wait()
        rows = self._out.split([copy.width for copy in self._copies])
        # A part of a message is a view of it; a shard's gradient is its own.
        return [(copy, writable(copy.part(row))) for copy, row in zip(self._copies, rows, strict=True)]


def joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
