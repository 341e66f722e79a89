"""Random numbers by counting: what is drawn at a place of a tensor follows from a key and the place alone.

So it is the same on every device, whoever draws it, and however the tensor is divided. A place is its number
in the whole tensor; of that and the key a *word* is made, 32 bits, by multiplications that keep the low half
and shifts. These are operators of whole tensors like any others. Masks, integers and uniform numbers are the
same bits everywhere. Normal and exponential ones are computed of such words in float64 and rounded, with the
device's own logarithm and cosine.

A stretch of so many numbers is made at a time, so that little memory is needed beside what is drawn.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import prod

import torch
from torch import Tensor

from ..programs.regions import Region

# How many numbers are made at a time: on the CPU, what its caches hold.
ON_CPU, ELSEWHERE = 1 << 16, 1 << 22
# Shifts, and multipliers between them, of a function of 32 bits to 32 bits: each bit of what goes in changes
# each bit of what comes out in half of all cases (`triple32` of the hash prospector, with a bias of 0.02).
SHIFTS = (17, 11, 15, 14)
FACTORS = (0xED5AD4BB, 0xAC4C1B51, 0x31848BAB)
HIGH = 0x9E3779B1
# How many a number is made of at most.
WORDS = 4
# As many bits as a uniform number of a type has.
DIGITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}

Keys = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Axis:
    """Places that follow each other, and how far apart in the whole."""

    low: int
    high: int
    stride: int

    @property
    def extent(self) -> int:
        return max(0, self.high - self.low)


@dataclass(frozen=True)
class Places:
    """Those of a region of a tensor, in the order of the region."""

    axes: tuple[Axis, ...]
    whole: int

    @staticmethod
    def from_region(sizes: Sequence[int], region: Region) -> Places:
        """`sizes` are those of the whole tensor's factors. Neighbours that lie one behind the other are one
        axis."""
        merged: list[tuple[int, int, int]] = []
        for size, (low, high) in zip(sizes, region, strict=True):
            before = merged[-1] if merged else (0, 1, 1)
            if (low, high) == (0, size) or before[1] - before[0] == 1:
                first = before[0] * size + low
                joined = (first, first + (before[1] - before[0] - 1) * size + high - low, before[2] * size)
                merged[-1:] = [joined]
            else:
                merged.append((low, high, size))
        axes, stride = [], 1
        for low, high, size in reversed(merged or [(0, 1, 1)]):
            axes.append(Axis(low, high, stride))
            stride *= size
        return Places(tuple(reversed(axes)), stride)

    @property
    def count(self) -> int:
        return prod([axis.extent for axis in self.axes])


def keys_of(key: int) -> Keys:
    """Of a key of 64 bits two numbers for each word that is asked for at a place."""
    digest = blake2b(struct.pack("<Q", key), digest_size=8 * WORDS).digest()
    numbers = struct.unpack(f"<{2 * WORDS}i", digest)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def drawn(
    kind: str,
    p: float,
    dtype: torch.dtype,
    shape: Sequence[int],
    keys: Keys,
    places: Places,
    device: torch.device,
) -> Tensor:
    """Of a kind of `Numbers`, at these places, which are as many as `shape` has."""
    if dtype.is_complex:
        return _complex(kind, p, dtype, shape, keys, places, device)
    out = torch.empty(list(shape), dtype=dtype, device=device)
    flat = out.view(-1)
    most = ON_CPU if device.type == "cpu" else ELSEWHERE
    for start, stop, numbers in _stretches(places, most, device):
        flat[start:stop].copy_(_Words(keys, numbers).of_kind(kind, p, dtype).view(-1))
    return out


def _complex(
    kind: str,
    p: float,
    dtype: torch.dtype,
    shape: Sequence[int],
    keys: Keys,
    places: Places,
    device: torch.device,
) -> Tensor:
    """Two real numbers each; of normal ones both together have the variance of one."""
    axes = tuple(Axis(axis.low, axis.high, 2 * axis.stride) for axis in places.axes)
    double = Places((*axes, Axis(0, 2, 1)), 2 * places.whole)
    real = torch.float64 if dtype == torch.complex128 else torch.float32
    parts = drawn(kind, p, real, [*shape, 2], keys, double, device)
    return torch.view_as_complex(parts.mul_(math.sqrt(0.5)) if kind == "normal" else parts)


@dataclass(frozen=True)
class _Numbers:
    """Numbers of places: their low halves, of 32 bits, and what is above these, if there is anything."""

    low: Tensor
    high: Tensor | None


def _stretches(places: Places, most: int, device: torch.device) -> Iterator[tuple[int, int, _Numbers]]:
    """The numbers of so many places at most, and where they are in the order of the region."""
    *outer, last = places.axes
    width = last.extent
    rows = places.count // width if width else 0
    together = max(1, most // max(width, 1))
    for row in range(0, rows, together):
        end = min(rows, row + together)
        starts = _starts(outer, row, end, device)
        for low in range(last.low, last.high, most):
            high = min(last.high, low + most)
            columns = torch.arange(low, high, device=device)
            start = row * width + low - last.low
            stop = start + (end - row) * (high - low)
            yield start, stop, _numbers(starts, columns, places.whole)


def _starts(outer: Sequence[Axis], row: int, end: int, device: torch.device) -> Tensor:
    """Where rows begin in the whole."""
    left = torch.arange(row, end, device=device)
    starts = torch.zeros_like(left)
    for axis in reversed(outer):
        starts += (left % axis.extent + axis.low) * axis.stride
        left = left // axis.extent
    return starts


def _numbers(starts: Tensor, columns: Tensor, whole: int) -> _Numbers:
    if whole <= 1 << 32:
        return _Numbers(_low(starts)[:, None] + _low(columns), None)
    numbers = starts[:, None] + columns
    return _Numbers(_low(numbers), (numbers >> 32).to(torch.int32))


def _low(x: Tensor) -> Tensor:
    """The lower 32 bits of integers of 64, with a sign."""
    return (((x & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000).to(torch.int32)


class _Words:
    """Words at places: each is asked for by its number, of which the first are 0, 1, and so on."""

    def __init__(self, keys: Keys, numbers: _Numbers):
        self._keys, self._numbers = keys, numbers

    def of_kind(self, kind: str, p: float, dtype: torch.dtype) -> Tensor:
        if kind == "uniform":
            return self._uniform(dtype)
        wide = dtype == torch.float64
        if kind == "normal":
            length = self._open(0, wide).log_().mul_(-2).sqrt_()
            return length.mul_(self._open(2, wide).mul_(2 * math.pi).cos_())
        if kind == "exponential":
            return self._open(0, wide).log_().div_(-p)
        if kind == "integers":
            above = _shifted(self.word(0), 1).to(torch.int64).mul_(1 << 32)
            return above.add_(self.word(1).to(torch.int64).bitwise_and_(0xFFFFFFFF)).remainder_(int(p))
        return self._below(p)

    def word(self, number: int) -> Tensor:
        first, second = self._keys[number]
        x = self._numbers.low + first
        for at, factor in enumerate(FACTORS):
            x.bitwise_xor_(_shifted(x, SHIFTS[at])).mul_(_signed(factor))
            if at == 0:
                x.bitwise_xor_(second)
                if self._numbers.high is not None:
                    x.bitwise_xor_(self._numbers.high * _signed(HIGH))
        return x.bitwise_xor_(_shifted(x, SHIFTS[-1]))

    def _below(self, p: float) -> Tensor:
        """Whether a word is among the first of all words, as many as `p` says."""
        limit = round(p * 2**32)
        if not 0 < limit < 1 << 32:
            return torch.full_like(self._numbers.low, limit > 0, dtype=torch.bool)
        return self.word(0) < limit - (1 << 31)

    def _uniform(self, dtype: torch.dtype) -> Tensor:
        if dtype == torch.float64:
            above = _shifted(self.word(0), 5).to(torch.float64).mul_(1 << 26)
            return above.add_(_shifted(self.word(1), 6)).mul_(2.0**-53)
        digits = DIGITS[dtype]
        return _shifted(self.word(0), 32 - digits).to(torch.float32).mul_(2.0**-digits)

    def _open(self, number: int, wide: bool) -> Tensor:
        """Between 0 and 1, and neither, in float64."""
        if not wide:
            return self.word(number).to(torch.float64).add_(2.0**31 + 0.5).mul_(2.0**-32)
        above = _shifted(self.word(number), 6).to(torch.float64).mul_(1 << 26)
        return above.add_(_shifted(self.word(number + 1), 6)).add_(0.5).mul_(2.0**-52)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Of bits, not of a number with a sign."""
    return (x >> by).bitwise_and_((1 << (32 - by)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >= 1 << 31 else bits
