"""Messages about parameters that ranks divide among them, on their way while other code runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ..communication.comm import Comm, Ranks
from ..guards.part_gradients import writable
from ..shards.copies import Copy
from .buckets import gradient_of
from .collectives import TOGETHER

# Of a copy.
Leaf = tuple[Copy, Tensor]


class Gathering:
    """Copies of one dtype; they are there after `wait`."""

    def __init__(self, comm: Comm, copies: Sequence[Copy], ranks: Ranks):
        self.leaves = {id(leaf) for copy in copies for leaf in copy.leaves}
        self._arriving = []
        for message in apart(copies, lambda copy: copy):
            own = joined([copy.own() for copy in message])
            first, *others = message
            # One whose parts follow each other arrives where it belongs.
            in_place = not others and first.cut.joins_flat
            width = own.numel()
            rows = first.place().view(len(ranks), width) if in_place else own.new_empty(len(ranks), width)
            self._arriving.append((message, in_place, rows, comm.all_gather(rows, own, ranks)))

    def wait(self) -> None:
        for message, in_place, rows, work in self._arriving:
            work.wait()
            if not in_place:
                parts = rows.split([copy.width for copy in message], 1)
                for copy, own in zip(message, parts, strict=True):
                    copy.fill(own)


class Scattering:
    """Gradients of leaves of one dtype, summed into the parts of a group's ranks."""

    def __init__(self, comm: Comm, leaves: Sequence[Leaf], ranks: Ranks, dtype: torch.dtype):
        self._arriving = []
        for message in apart(leaves, lambda leaf: leaf[0]):
            rows = [copy.rows(gradient_of(leaf).to(dtype)) for copy, leaf in message]
            sent = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
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
