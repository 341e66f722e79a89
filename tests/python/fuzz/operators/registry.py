"""The list of all operators, and how a file adds to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..pool import Pool

Make = Callable[[Pool], object]


@dataclass(frozen=True)
class Operator:
    family: str
    name: str
    make: Make


OPERATORS: list[Operator] = []


def operator(family: str, name: str = "") -> Callable[[Make], Make]:
    """Adds a function to the list, by its own name or another."""

    def add(make: Make) -> Make:
        OPERATORS.append(Operator(family, name or make.__name__.strip("_"), make))
        return make

    return add


def texts(family: str, operands: Callable[[Pool], tuple[object, ...]], lines: dict[str, str]) -> None:
    """Operators that are one line: `lines` by name, with `{}` for each operand."""
    for name, line in lines.items():
        operator(family, name)(lambda p, line=line: p.several(line.format(*operands(p))))
