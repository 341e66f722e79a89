"""Parameters that ranks divide among them, or that live on the host, on their way while other code runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from ..communication.comm import Comm, Ranks
from ..communication.works import Done, Work
from ..guards.part_gradients import writable
from ..programs.cuts import physical
from ..shards.copies import Copy
from .buckets import gradient_of
from .offload import Host

# Of a copy.
Leaf = tuple[Copy, Tensor]


class Gathering:
    """Copies of one dtype; they are there after `wait`."""

    def __init__(self, comm: Comm, copies: Sequence[Copy], ranks: Ranks, host: Host):
        self.leaves = {id(leaf) for copy in copies for leaf in copy.leaves}
        self._host = host
        self._arriving: list[tuple[list[Copy], Tensor, Work]] = []
        messages = _apart(copies, lambda copy: copy, comm.joined) if len(ranks) > 1 else []
        # Memory that others read is had before, from where they get theirs.
        rooms = [(message, _room(message, len(ranks))) for message in messages]
        alone = [] if messages else copies
        for copy in alone:
            copy.place()
        with host.beside() if any(copy.on_host for copy in copies) else nullcontext():
            for copy in alone:
                copy.bring()
            for message, rows in rooms:
                self._arriving.append((message, rows, comm.all_gather(rows, _own_row(message), ranks)))
            self._event = host.mark() if alone else None

    def wait(self) -> None:
        self._host.wait(self._event)
        for message, rows, work in self._arriving:
            work.wait()
            if not _is_in_place(message):
                _take_apart(message, rows)


class Scattering:
    """Gradients of leaves of one dtype, summed into the parts of a group's ranks."""

    def __init__(self, comm: Comm, leaves: Sequence[Leaf], ranks: Ranks, dtype: torch.dtype):
        self._arriving: list[tuple[list[Copy], Tensor, Work]] = []
        # What stays on its rank need not be copied.
        for message in _apart(leaves, lambda leaf: leaf[0], comm.joined if len(ranks) > 1 else 0):
            copies = [copy for copy, _ in message]
            sent = _rows(copies, [gradient_of(leaf) for _, leaf in message], len(ranks), dtype)
            if len(ranks) == 1:
                self._arriving.append((copies, sent[0], Done()))
                continue
            out = sent.new_empty(sent.shape[1])
            self._arriving.append((copies, out, comm.reduce_scatter(out, sent, ranks)))

    def wait(self) -> list[tuple[Copy, Tensor]]:
        parts = []
        for copies, out, work in self._arriving:
            work.wait()
            rows = out.split([copy.width for copy in copies])
            parts += [(copy, writable(copy.part(row))) for copy, row in zip(copies, rows, strict=True)]
        return parts


Item = TypeVar("Item")


def _apart(items: Sequence[Item], copy_of: Callable[[Item], Copy], most: int) -> list[list[Item]]:
    """Messages: what has more elements than are joined, and may lie as it is, travels by itself."""
    large = [item for item in items if _is_large(copy_of(item), most)]
    small = [item for item in items if not _is_large(copy_of(item), most)]
    return [[item] for item in large] + ([small] if small else [])


def _is_large(copy: Copy, most: int) -> bool:
    return copy.joins_flat and copy.width > most


def _is_in_place(message: Sequence[Copy]) -> bool:
    """One whose parts follow each other arrives where it belongs, and is sent from where it arose."""
    return len(message) == 1 and message[0].joins_flat


def _room(message: Sequence[Copy], ranks: int) -> Tensor:
    """For a row of each rank."""
    first = message[0]
    if _is_in_place(message):
        return first.place().view(ranks, first.width)
    return first.empty(ranks, sum(copy.width for copy in message))


def _own_row(message: Sequence[Copy]) -> Tensor:
    """What this rank sends: its parts one behind the other, each as long as the longest of all ranks."""
    if len(message) == 1:
        return message[0].padded_part()
    [row] = _empty(message, message[0].empty(0), 1, message[0].dtype)
    parts = [copy.here().reshape(-1) for copy in message]
    places = row.split([copy.width for copy in message])
    torch._foreach_copy_([place[: len(part)] for place, part in zip(places, parts, strict=True)], parts)
    return row


def _take_apart(message: Sequence[Copy], rows: Tensor) -> None:
    """As few kernels as there can be: one where all parts follow each other in memory."""
    if all(copy.joins_flat for copy in message):
        wholes = [copy.place().view(len(rows), copy.width) for copy in message]
        torch.split_with_sizes_copy(rows, [copy.width for copy in message], 1, out=wholes)
        return
    pairs = _pairs(message, rows, [copy.place() for copy in message])
    _copy([whole for _, whole in pairs], [row for row, _ in pairs])


def _rows(copies: Sequence[Copy], gradients: Sequence[Tensor], ranks: int, dtype: torch.dtype) -> Tensor:
    """What each rank gets of gradients of leaves."""
    if _is_in_place(copies):
        return gradients[0].to(dtype).contiguous().view(ranks, copies[0].width)
    rows = _empty(copies, gradients[0], ranks, dtype)
    pairs = _pairs(copies, rows, [physical(gradient).contiguous() for gradient in gradients])
    _copy([row for row, _ in pairs], [whole for _, whole in pairs])
    return rows


def _copy(places: list[Tensor], given: list[Tensor]) -> None:
    """PyTorch refuses lists without tensors: of what is empty nothing is copied."""
    if places:
        torch._foreach_copy_(places, given)


def _empty(copies: Sequence[Copy], like: Tensor, ranks: int, dtype: torch.dtype) -> Tensor:
    """Rows of a message. What is longer than a rank's part is sent, too, and added up."""
    size = ranks, sum(copy.width for copy in copies)
    padded = any(len(copy.runs) > 1 for copy in copies)
    return like.new_zeros(size, dtype=dtype) if padded else like.new_empty(size, dtype=dtype)


def _pairs(copies: Sequence[Copy], rows: Tensor, wholes: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    starts = accumulate((copy.width for copy in copies), initial=0)
    columns = zip(copies, starts, wholes, strict=False)
    return [pair for copy, start, whole in columns for pair in copy.pairs(rows, start, whole)]
