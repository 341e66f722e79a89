"""What a rank gathers of parameters that it holds a part of, or on its host, and gives up again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..programs.cuts import Cut, balanced, padded
from ..programs.program import Gathered
from ..programs.regions import local_factors, shape_of


class Fleeting(Tensor):
    """A leaf whose memory is there for a while only: what prints it, such as a traceback, must not look."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<what is gathered of a parameter, {tuple(self.shape)}, {self.dtype}>"


class Copy:
    """The parts of a group's ranks, joined along one factor, in memory that is there while it is needed.

    Autograd keeps what it saves of a leaf: it is gathered again into the same storage, which it sees.
    """

    def __init__(self, shard: Any, device: torch.device, it: Gathered):
        self.at = it.shard
        tensor, data = shard.tensor, shard.data
        factors = local_factors(it.region, tensor.factors)
        lo, hi = it.region[it.factor]
        self._start = lo
        self.shard = shard
        self.on_host: bool = tensor.on_host
        self.cut = Cut(factors, it.factor, balanced(hi - lo, it.parts))
        self.width = max(map(self.cut.numel, range(it.parts)))
        self.dtype = tensor.read_as or data.dtype
        self._whole = torch.empty(shape_of(factors), dtype=self.dtype, device=device)
        self._storage = self._whole.untyped_storage()
        self._bytes = self._storage.nbytes()
        # Each has a gradient of its own.
        self.leaves: list[Tensor] = []
        self.release()

    def leaf(self) -> Tensor:
        tensor, kept = self.shard.tensor, self.shard.data.dtype
        made = Tensor._make_subclass(Fleeting, self._whole.detach(), tensor.trainable)
        if tensor.trainable and self.dtype != kept:
            made.grad_dtype = kept
        self.leaves.append(made)
        return made

    @property
    def pointer(self) -> int:
        return self._storage.data_ptr()

    def release(self) -> None:
        self._storage.resize_(0)

    def own(self) -> Tensor:
        """This rank's part, as long as the longest."""
        return padded(self._here().to(self.dtype), self.width)

    def bring(self) -> None:
        """All of it is on this rank's host."""
        there = self.shard.data.detach()
        # What is cast goes as it is there: else the host would cast it, while the device waits.
        there = there if there.dtype == self.dtype else self._here()
        self.place().copy_(there.view(self._whole.shape), non_blocking=True)

    def _here(self) -> Tensor:
        """This rank's part on the device."""
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

    def fill(self, rows: Tensor) -> None:
        """From each rank's part."""
        whole = self.place().view(self.cut.extents())
        for index, piece in enumerate(whole.split(self.cut.sizes, self.cut.at)):
            piece.copy_(rows[index, : self.cut.numel(index)].view(piece.shape))

    def rows(self, gradient: Tensor) -> Tensor:
        """A gradient of a leaf, as a row for each rank's part."""
        if self.cut.joins_flat:
            return gradient.contiguous().view(len(self.cut.sizes), self.width)
        return torch.stack([padded(piece, self.width) for piece in self.cut.split(gradient)])

    def own_part(self, gradient: Tensor) -> Tensor:
        """Of a gradient of a leaf."""
        lo, hi = self.shard.region[self.cut.at]
        part = gradient.reshape(self.cut.extents()).narrow(self.cut.at, lo - self._start, hi - lo)
        return part.reshape(self.shard.data.shape)

    def part(self, row: Tensor) -> Tensor:
        """What a row is for this rank's shard."""
        return row[: self.shard.data.numel()].view(self.shard.data.shape)
