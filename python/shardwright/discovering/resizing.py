"""Other sizes: what a rule lets be split has no size of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from .._core import Discovery
from .subject import Subject
from .trying import At, Holds, Split

Sized = tuple[At, int]
Gaps = tuple[list[Sized], list[Sized]]

_PRIMES = (5, 7, 3, 11, 13, 17, 19, 23)


@dataclass
class Sizes:
    shapes: list[list[int]]
    values: list[int]
    """Of the arguments that are ints."""
    dims: list[int]
    """Of the splits that hold."""


class Resizing:
    def __init__(self, subject: Subject, discovery: Discovery, held: list[tuple[Split, Holds]]) -> None:
        self._subject = subject
        self._discovery = discovery
        self.held = held

    def drop_fixed(self) -> None:
        """Splits whose dims cannot have another size, by themselves or together."""
        for at in reversed(range(len(self.held))):
            dims = self.example().dims
            dims[at] = self._other(at, 0)
            if self.outputs(self.with_dims(dims)) is None:
                self.drop(at)
        while self.held and any(self.outputs(sizes) is None for sizes in self.sets()):
            self.drop(len(self.held) - 1)

    def drop(self, at: int) -> None:
        del self.held[at]
        self._discovery.drop(at)

    def example(self) -> Sizes:
        return self.with_dims([split.size for split, _ in self.held])

    def sets(self) -> list[Sizes]:
        """Other sizes of all dims that may be split."""
        all_of = range(len(self.held))
        return [self.with_dims([self._other(at, turn) for at in all_of]) for turn in (0, 1)]

    def _other(self, at: int, turn: int) -> int:
        """A prime number that is not the size of the example."""
        size = self.held[at][0].size
        primes = [prime for prime in _PRIMES if prime != size]
        return primes[(at + 2 * turn) % len(primes)]

    def with_dims(self, dims: list[int]) -> Sizes:
        shapes, values = self._subject.shapes, list(self._subject.values)
        for size, (split, _) in zip(dims, self.held, strict=True):
            for operand, dim, _ in split.inputs:
                shapes[operand][dim] = shapes[operand][dim] // split.size * size
            if split.argument is not None:
                values[split.argument] = size
        return Sizes(shapes, values, dims)

    def outputs(self, sizes: Sizes) -> list[list[int]] | None:
        """The shapes of what it gives, if it takes these."""
        try:
            with torch.no_grad():
                outputs = self._subject.run(self._subject.draw(sizes.shapes, 1), sizes.values)
        except Exception:  # sizes that it does not take
            return None
        return [list(output.shape) for output in outputs]

    def classes(self) -> tuple[list[int], list[int]]:
        """Which of the gaps are one dim: those of one size that cannot have another one by themselves."""
        inputs, outputs = self._discovery.gaps()
        by_size: dict[int, int] = {}
        numbers = count()
        numbered: list[int] = []
        for gap in inputs:
            alone = self._resized([gap]) is not None
            repeats = any(
                other[0][0] == gap[0][0] and numbered[at] == by_size.get(gap[1])
                for at, other in enumerate(inputs[: len(numbered)])
            )
            new = alone or repeats or gap[1] not in by_size
            number = next(numbers) if new else by_size[gap[1]]
            if new and not alone:
                by_size[gap[1]] = number
            numbered.append(number)
        return numbered, self._output_classes((inputs, outputs), numbered, numbers)

    def _output_classes(self, gaps: Gaps, classes: Sequence[int], numbers: Iterator[int]) -> list[int]:
        """A result has a dim of the inputs if it has another size where that has."""
        inputs, outputs = gaps
        follows: dict[int, int] = {}
        fixed: dict[int, int] = {}
        before = self.outputs(self.example())
        for number in sorted(set(classes)):
            members = [
                gap for gap, member_class in zip(inputs, classes, strict=True) if member_class == number
            ]
            after = self._resized(members)
            size = members[0][1]
            if after is None or before is None:
                fixed.setdefault(size, number)
                continue
            for at, ((operand, dim, _), size_after) in enumerate(outputs):
                grown = after[operand][dim] * size == before[operand][dim] * _grown(size)
                if size_after == size and grown and len(after[operand]) == len(before[operand]):
                    follows.setdefault(at, number)
        numbered: list[int] = []
        for at, (place, size) in enumerate(outputs):
            number = follows.get(at, fixed.get(size, -1))
            taken = [outputs[other][0][0] == place[0] and numbered[other] == number for other in range(at)]
            numbered.append(next(numbers) if number < 0 or any(taken) else number)
        return numbered

    def _resized(self, gaps: Sequence[Sized]) -> list[list[int]] | None:
        sizes = self.example()
        for (operand, dim, _), size in gaps:
            sizes.shapes[operand][dim] = sizes.shapes[operand][dim] // size * _grown(size)
        return self.outputs(sizes)


def _grown(size: int) -> int:
    return size + 2
