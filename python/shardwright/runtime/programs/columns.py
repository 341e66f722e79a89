"""What the ranks of a role differ in, which `program.json` tells in rows as long as they are rows.

A row is a first number and steps, of which the last runs fastest: from 0 by 2 times 4 and 2 times 1 are
0, 1, 4, 5. So a rank finds what is its own without walking through what others have.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from .regions import Region

Steps = list[list[int]]


def at_row(start: int, by: Steps, at: int) -> int:
    """The number at a position of a row."""
    for size, step in reversed(by):
        at, digit = divmod(at, size)
        start += digit * step
    return start


def numbers_of(entry: Any) -> list[int]:
    """All of a list, or of a row."""
    if isinstance(entry, list):
        return entry
    return _row(entry["from"], entry["by"])


def number_at(entry: Any, at: int) -> int:
    """The number of the rank at a position of its role."""
    if isinstance(entry, list):
        return entry[at]
    return entry if isinstance(entry, int) else at_row(entry["from"], entry["by"], at)


def groups_of(entry: Any) -> list[list[int]]:
    """All groups: listed, or alike from ranks on that are a row."""
    if isinstance(entry, list):
        return [numbers_of(group) for group in entry]
    return [_row(first, entry["of"]) for first in numbers_of(entry)]


def _row(start: int, by: Steps) -> list[int]:
    steps = [range(0, size * step, step) if step else [0] * size for size, step in by]
    return [start + sum(offsets) for offsets in product(*steps)]


class Regions:
    """The regions of a program. Some are one for each rank of a role."""

    def __init__(self, entries: list[Any]):
        self._entries = entries
        self._made: dict[tuple[int, int], Region] = {}

    def at(self, number: int, at: int) -> Region:
        """The region of the rank at a position of its role."""
        key = (number, at)
        if key not in self._made:
            self._made[key] = self._region(self._entries[number], at)
        return self._made[key]

    def one(self, number: int) -> Region:
        """A region that is no rank's own."""
        return self.at(number, 0)

    def _region(self, entry: Any, at: int) -> Region:
        if isinstance(entry, dict):
            return self.one(entry["of"][at_row(0, entry["by"], at) if "by" in entry else at])
        return tuple(_interval(at, *factor) for factor in entry)


def _interval(at: int, low: int, high: int, by: Steps | None = None) -> tuple[int, int]:
    moved = at_row(low, by, at) if by else low
    return moved, moved + high - low
