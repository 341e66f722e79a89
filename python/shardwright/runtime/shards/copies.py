"""What a rank gathers of parameters that it holds a part of, or on its host, and gives up again."""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..programs.cuts import Cut, balanced, padded
from ..programs.program import Gathered
from ..programs.regions import Region, cut, local_factors, shape_of, within
from .own_gradients import own_gradient


class Fleeting(Tensor):
    """A leaf whose memory is there for a while only: what prints it, such as a traceback, must not look."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<what is gathered of a parameter, {tuple(self.shape)}, {self.dtype}>"


class Run(NamedTuple):
    """Parts of one size, of ranks that follow each other."""

    first: int
    # How many there are, of how many blocks each is in the whole, and elements of a block, which lie as one.
    sizes: tuple[int, int, int]
    # Where they lie in the whole.
    strides: tuple[int, int, int]
    offset: int


class Copy:
    """The parts of a group's ranks, joined along one factor, in memory that is there while it is needed.

    Autograd keeps what it saves of a leaf: it is gathered again into the same storage, which it sees.
    """

    def __init__(self, shard: Any, device: torch.device, it: Gathered):
        self.at = it.shard
        tensor, data = shard.tensor, shard.data
        factors = local_factors(it.region, tensor.factors)
        self._region, self._factors = it.region, factors
        lo, hi = it.region[it.factor]
        self._start = lo
        self.shard = shard
        self.on_host: bool = tensor.on_host
        self.cut = Cut(factors, it.factor, balanced(hi - lo, it.parts))
        self.joins_flat = self.cut.joins_flat
        self.runs = _runs(self.cut)
        self.width = self.cut.numel(0)
        self.dtype = tensor.read_as or data.dtype
        self._whole = torch.empty(shape_of(factors), dtype=self.dtype, device=device)
        self._storage = self._whole.untyped_storage()
        self._bytes = self._storage.nbytes()
        # Each has a gradient of its own.
        self.leaves: list[Tensor] = []
        self.release()

    def leaf(self, region: Region) -> Tensor:
        """What is read of it: all of it, or a part that has no elements."""
        tensor, kept = self.shard.tensor, self.shard.data.dtype
        read = self._whole.detach()
        if region != self._region:
            read = cut(read, self._factors, within(region, self._region))
        made = Tensor._make_subclass(Fleeting, read, tensor.trainable)
        if tensor.trainable and self.dtype != kept:
            made.grad_dtype = kept
        if tensor.trainable:
            own_gradient(made)
        self.leaves.append(made)
        return made

    @property
    def pointer(self) -> int:
        return self._storage.data_ptr()

    def release(self) -> None:
        self._storage.resize_(0)

    def padded_part(self) -> Tensor:
        """This rank's part, as long as the longest."""
        return padded(self.here().to(self.dtype), self.width)

    def bring(self) -> None:
        """All of it is on this rank's host."""
        there = self.shard.data.detach()
        # What is cast goes as it is there: else the host would cast it, while the device waits.
        there = there if there.dtype == self.dtype else self.here()
        self.place().copy_(there.view(self._whole.shape), non_blocking=True)

    def here(self) -> Tensor:
        """This rank's part on the device, as it is held."""
        data: Tensor = self.shard.data.detach()
        if not self.on_host:
            return data
        return torch.empty_like(data, device=self._whole.device).copy_(data, non_blocking=True)

    def place(self) -> Tensor:
        """The memory, which autograd does not see being written."""
        if self._storage.nbytes() != self._bytes:
            self._storage.resize_(self._bytes)
        return self._whole.data

    def empty(self, *size: int) -> Tensor:
        """Room for what is read as this is, where code runs."""
        return self._whole.new_empty(size)

    def pairs(self, rows: Tensor, at: int, whole: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Views: what of the rows of all ranks, where this copy's columns begin `at`, is what of the whole.
        There are at most two, however many ranks there are. Both lie in their memory without gaps."""
        columns, start = rows.shape[1], rows.storage_offset() + at
        return [
            (
                rows.as_strided(run.sizes, (columns, run.sizes[2], 1), start + run.first * columns),
                whole.as_strided(run.sizes, run.strides, whole.storage_offset() + run.offset),
            )
            for run in self.runs
        ]

    def own_part(self, gradient: Tensor) -> Tensor:
        """Of a gradient of a leaf."""
        lo, hi = self.shard.region[self.cut.at]
        part = gradient.reshape(self.cut.extents()).narrow(self.cut.at, lo - self._start, hi - lo)
        return part.reshape(self.shard.data.shape)

    def part(self, row: Tensor) -> Tensor:
        """What a row is for this rank's shard."""
        return row[: self.shard.data.numel()].view(self.shard.data.shape)


def _runs(cut: Cut) -> list[Run]:
    extents = cut.extents()
    before, after = prod(extents[: cut.at]), prod(extents[cut.at + 1 :])
    runs: list[Run] = []
    first = start = 0
    for size, same in groupby(cut.sizes):
        count = len(list(same))
        if before * size * after:
            strides = size * after, extents[cut.at] * after, 1
            runs.append(Run(first, (count, before, size * after), strides, start * after))
        first, start = first + count, start + count * size
    return runs
