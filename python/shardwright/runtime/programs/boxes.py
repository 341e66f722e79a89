"""Regions, which are intervals of factors, as boxes of the real tensor, which files can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from torch import Tensor

from .regions import Factors, Region, contains, extents, meet, narrow, numel


@dataclass(frozen=True)
class Box:
    """Where a box starts in the whole tensor, where in the tensor of the region, and its sizes."""

    offsets: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def view_of(self, part: Tensor) -> Tensor:
        """A view of the box in the tensor of the region."""
        return narrow(part, [(low, low + size) for low, size in zip(self.starts, self.sizes, strict=True)])


def boxes(region: Region, factors: Factors) -> list[Box]:
    """The boxes that together are a region, in the order of the region's elements."""
    if not numel(region):
        return []
    ends = iter(region)
    dims = [_runs([next(ends) for _ in dim], dim) for dim in factors]
    return [
        Box(
            tuple(start for start, _, _ in runs),
            tuple(local for _, local, _ in runs),
            tuple(length for _, _, length in runs),
        )
        for runs in product(*dims)
    ]


def minus(region: Region, other: Region) -> list[Region]:
    """Disjoint regions that together are what of one region is not in the other."""
    shared = meet(region, other)
    if not numel(region) or not all(size > 0 for size in extents(shared)):
        return [region] if numel(region) else []
    left: list[Region] = []
    for at, ((low, high), (start, end)) in enumerate(zip(region, shared, strict=True)):
        # What is beside the shared part in this factor, and inside of it in all factors before.
        for interval in ((low, start), (end, high)):
            if interval[0] < interval[1]:
                left.append((*shared[:at], interval, *region[at + 1 :]))
    return left


def disjoint(regions: Sequence[Region]) -> Iterator[tuple[int, Region]]:
    """Pieces that cover all regions once, each with the number of a region that it lies in.

    The larger a region, the sooner it is taken whole.
    """
    taken: list[Region] = []
    for at in sorted(range(len(regions)), key=lambda at: -numel(regions[at])):
        region = regions[at]
        if any(contains(other, region) for other in taken):
            continue
        pieces = [region] if numel(region) else []
        for other in taken:
            pieces = [piece for whole in pieces for piece in minus(whole, other)]
        yield from ((at, piece) for piece in pieces)
        taken.append(region)


def _runs(intervals: Sequence[tuple[int, int]], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Intervals of the factors of one dim as runs of its indices: start, start in the part, length."""
    inner = len(sizes)
    while inner and intervals[inner - 1] == (0, sizes[inner - 1]):
        inner -= 1
    if not inner:
        return [(0, 0, prod(sizes))]
    strides = [prod(sizes[at + 1 :]) for at in range(len(sizes))]
    low, high = intervals[inner - 1]
    length = (high - low) * strides[inner - 1]
    outer = [range(*interval) for interval in intervals[: inner - 1]]
    starts = [
        sum(i * stride for i, stride in zip(index, strides, strict=False)) + low * strides[inner - 1]
        for index in product(*outer)
    ]
    return [(start, number * length, length) for number, start in enumerate(starts)]
