"""Where tensors are cut along one factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from .regions import Factors, flat, shape_of


@dataclass(frozen=True)
class Cut:
    """Where a tensor that is whole along one factor falls into pieces."""

    factors: list[list[int]]
    at: int
    sizes: list[int]

    @staticmethod
    def from_sizes(shape: Sequence[int], at: int, sizes: Sequence[int], factors: Factors | None) -> Cut:
        """`shape` is that of the whole or of any piece; it says nothing if there are factors."""
        dims = [list(dim) for dim in factors] if factors else [[size] for size in shape]
        return Cut(_replaced(dims, at, sum(sizes)), at, list(sizes))

    def piece(self, index: int) -> list[list[int]]:
        """The factors of a piece."""
        return _replaced(self.factors, self.at, self.sizes[index])

    def extents(self, index: int | None = None) -> list[int]:
        dims = self.factors if index is None else self.piece(index)
        return flat(dims)

    def numel(self, index: int) -> int:
        return prod(self.extents(index))

    @property
    def joins_flat(self) -> bool:
        """Whether pieces, one behind the other in memory, are the whole."""
        return prod(self.extents()[: self.at]) == 1 and len(set(self.sizes)) == 1

    def split(self, x: Tensor) -> list[Tensor]:
        return list(torch.split(x.reshape(self.extents()), self.sizes, self.at))

    def join(self, pieces: list[Tensor]) -> Tensor:
        shaped = [piece.reshape(self.extents(index)) for index, piece in enumerate(pieces)]
        return torch.cat(shaped, self.at).reshape(shape_of(self.factors))


def balanced(size: int, parts: int) -> list[int]:
    """The first ones are longer by one, if they must be."""
    return [size // parts + (index < size % parts) for index in range(parts)]


def padded(x: Tensor, width: int) -> Tensor:
    x = physical(x.reshape(-1))
    return x if x.numel() == width else torch.cat([x, x.new_zeros(width - x.numel())])


def physical(x: Tensor) -> Tensor:
    """With a conjugate or a negative that PyTorch only notes in its memory: messages are bytes of that."""
    return x.resolve_conj().resolve_neg()


def _replaced(factors: list[list[int]], at: int, size: int) -> list[list[int]]:
    count, dims = 0, []
    for dim in factors:
        dims.append([size if count + i == at else old for i, old in enumerate(dim)])
        count += len(dim)
    return dims
