"""Regions: an interval for each factor over all dims of a tensor.

A dim of size one has no factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

Interval = tuple[int, int]
Region = tuple[Interval, ...]
Factors = Sequence[Sequence[int]]


def shape_of(factors: Factors) -> tuple[int, ...]:
    return tuple(prod(dim) for dim in factors)


def flat(factors: Factors) -> list[int]:
    return [size for dim in factors for size in dim]


def whole(factors: Factors) -> Region:
    return tuple((0, size) for size in flat(factors))


def extents(region: Region) -> list[int]:
    return [high - low for low, high in region]


def numel(region: Region) -> int:
    return prod(max(size, 0) for size in extents(region))


def meet(a: Region, b: Region) -> Region:
    return tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))


def contains(outer: Region, inner: Region) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def within(region: Region, frame: Region) -> Region:
    """The same region counted from the start of the frame that contains it."""
    return tuple((low - start, high - start) for (low, high), (start, _) in zip(region, frame, strict=True))


def local_factors(region: Region, factors: Factors) -> list[list[int]]:
    """The extents of a region, dim by dim."""
    sizes = iter(extents(region))
    return [[next(sizes) for _ in dim] for dim in factors]


def narrow(x: Tensor, intervals: Iterable[Interval]) -> Tensor:
    """A view: one interval for each dim of `x`."""
    for dim, (low, high) in enumerate(intervals):
        if (low, high) != (0, x.shape[dim]):
            x = x.narrow(dim, low, high - low)
    return x


@dataclass(frozen=True)
class Place:
    """Where a region lies in a tensor, computed once for views that are taken often."""

    # The tensor with a dim for each factor; the dims that are narrowed: where from, and how far.
    factors: tuple[int, ...]
    narrowed: tuple[tuple[int, int, int], ...]
    numel: int

    @staticmethod
    def from_region(factors: Factors, region: Region) -> Place:
        sizes = tuple(flat(factors))
        sides = enumerate(zip(region, sizes, strict=True))
        narrowed = ((dim, low, high - low) for dim, ((low, high), size) in sides if (low, high) != (0, size))
        return Place(sizes, tuple(narrowed), numel(region))

    @property
    def is_all(self) -> bool:
        return not self.narrowed

    def of_whole(self, x: Tensor) -> Tensor:
        """The part of `x`, a dim for each factor unless it is all; a view where the strides allow it."""
        if not self.narrowed:
            return x
        return self._narrow(x if x.shape == self.factors else x.reshape(self.factors))

    def in_whole(self, x: Tensor) -> Tensor:
        """A view to write through, of the contiguous tensor `x`."""
        return self._narrow(x.view(self.factors))

    def _narrow(self, x: Tensor) -> Tensor:
        for dim, low, size in self.narrowed:
            x = x.narrow(dim, low, size)
        return x


def cut(x: Tensor, factors: Factors, region: Region) -> Tensor:
    """The part of `x` in a region; a view where the strides allow it."""
    part = narrow(x.reshape(flat(factors)), region)
    return part.reshape(shape_of(local_factors(region, factors)))


def window(x: Tensor, factors: Factors, region: Region) -> Tensor:
    """A view to write a region of the contiguous tensor `x` through, one dim for each factor."""
    return narrow(x.view(flat(factors)), region)
