"""Whether a split holds: the parts' results, put together, are the whole's, values and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from .._core import places_of
from ..verifying import TOLERANCE, difference
from .subject import Subject, Trial

At = tuple[int, int, int]
"""Which tensor, which of its dims, and how many elements of that lie outside of the factor."""

_FLOATS = {"+": torch.sum, ">": torch.amax, "<": torch.amin}
_BOOLS = {"|": torch.any, "&": torch.all}
# Jointly linear in more operands is no function that is met.
_MOST_JOINTLY = 4


@dataclass(frozen=True)
class Split:
    size: int
    inputs: Sequence[At]
    argument: int | None


@dataclass(frozen=True)
class Holds:
    mark: str
    outputs: list[At]
    once: list[int]


@dataclass
class Trying:
    """A function, and what the whole of it gives for some tensors."""

    subject: Subject
    trials: list[Trial]
    nullable: list[int]
    """Tensors for which it also takes `None`."""

    @classmethod
    def of(cls, subject: Subject) -> Trying:
        trials = [subject.trial(subject.shapes, subject.values, 1)]
        # What is a sum of small numbers only, or of positive ones, is none.
        for seed, scale in ((2, 1.0), (3, 0.05), (4, 20.0)):
            try:
                trial = subject.trial(subject.shapes, subject.values, seed, scale)
            except Exception:  # numbers that it does not take
                continue
            if all(bool(x.isfinite().all()) for x in [*trial.outputs, *trial.gradients] if x is not None):
                trials.append(trial)
        made = cls(subject, trials, [])
        made.nullable = [at for at in range(len(subject.samples)) if made._takes_none(at)]
        return made

    def holds(self, split: Split) -> Holds | None:
        """How its parts are put together, if that is the same in all trials and with all cuts."""
        found = self._values(split, [])
        others = {at for at, _, _ in split.inputs}
        for at in self.nullable:
            if found is None and at not in others:
                found = self._values(split, [at])
                if found is not None and found.mark != "+":
                    found = None
        if found is None or found.mark not in ("", "+"):
            # Where a gradient flows, nothing is split by a maximum.
            return found
        return found if self._gradients(split, found) else None

    def _values(self, split: Split, once: list[int]) -> Holds | None:
        left: tuple[set[str], list[set[At]]] | None = None
        for trial in self.trials:
            for cut in cuts(split.size):
                parts = self._parts(trial, split, cut, once)
                if parts is None:
                    return None
                ways = _ways(trial.outputs, parts, split.size, cut)
                if left is not None:
                    places = [a & b for a, b in zip(left[1], ways[1], strict=True)]
                    ways = left[0] & ways[0], places
                mapped = all(ways[1])
                if not mapped and not ways[0]:
                    return None
                left = ways
        assert left is not None
        marks, places = left
        if all(places) == bool(marks) or len(marks) > 1 or (not marks and any(len(p) > 1 for p in places)):
            return None
        return Holds("".join(marks), [next(iter(of)) for of in places] if not marks else [], once)

    def _parts(
        self, trial: Trial, split: Split, cut: Sequence[int], once: Sequence[int]
    ) -> list[list[Tensor]] | None:
        found = []
        for number, (tensors, values) in enumerate(self._given(trial, split, cut, once)):
            try:
                with torch.no_grad():
                    found.append([x.detach() for x in self.subject.run(tensors, values)])
            except Exception:  # parts that it does not take
                return None
            if len(found[number]) != len(trial.outputs):
                return None
        return found

    def _given(
        self, trial: Trial, split: Split, cut: Sequence[int], once: Sequence[int]
    ) -> Iterator[tuple[list[Tensor | None], list[int]]]:
        """What each part is."""
        start = 0
        for number, length in enumerate(cut):
            tensors: list[Tensor | None] = list(trial.tensors)
            for operand, dim, outer in split.inputs:
                whole = trial.tensors[operand]
                tensors[operand] = part_of(whole, dim, outer, split.size, start, length)
            for at in once:
                tensors[at] = tensors[at] if number == 0 else None
            values = list(self.subject.values)
            if split.argument is not None:
                values[split.argument] = length
            start += length
            yield tensors, values

    def _gradients(self, split: Split, holds: Holds) -> bool:
        return all(
            self._gradients_of(trial, split, holds, cut) for trial in self.trials for cut in cuts(split.size)
        )

    def _gradients_of(self, trial: Trial, split: Split, holds: Holds, cut: Sequence[int]) -> bool:
        divided = {operand: (dim, outer) for operand, dim, outer in split.inputs}
        parts, start = [], 0
        for length, (tensors, values) in zip(cut, self._given(trial, split, cut, holds.once), strict=True):
            weights = list(trial.weights)
            for operand, dim, outer in holds.outputs:
                whole = weights[operand]
                if whole is not None:
                    weights[operand] = part_of(whole, dim, outer, split.size, start, length)
            start += length
            try:
                parts.append(self.subject.learn(tensors, values, weights).gradients)
            except Exception:  # a backward that parts do not have
                return False
        for operand, whole in enumerate(trial.gradients):
            own = [part[operand] for part in parts]
            if whole is None:
                continue
            given = [x for x in own if x is not None]
            if operand in divided:
                dim, outer = divided[operand]
                found = together(given, dim, outer, cut)
            else:
                found = torch.stack(given).sum(0)
            if not same(found, whole):
                return False
        return True

    def linear(self, once: Sequence[int]) -> list[list[int]]:
        """The least sets of tensors in which the function is linear jointly."""
        if not all(output.dtype.is_floating_point for output in self.trials[0].outputs):
            return []
        floats = [at for at in range(len(self.subject.samples)) if self.subject.is_float(at)]
        found: list[list[int]] = []
        for count in range(1, min(len(floats), _MOST_JOINTLY) + 1):
            for jointly in combinations(floats, count):
                known = any(set(of) <= set(jointly) for of in found)
                if not known and self.is_linear(jointly, once):
                    found.append(list(jointly))
        return found

    def is_linear(self, jointly: Sequence[int], once: Sequence[int]) -> bool:
        return all(self._is_linear(trial, jointly, once) for trial in self.trials)

    def _is_linear(self, trial: Trial, jointly: Sequence[int], once: Sequence[int]) -> bool:
        """Of two partial sums, of which one is not near half of the whole."""
        subject = self.subject
        other = subject.draw(subject.shapes, 5)
        first: list[Tensor | None] = list(trial.tensors)
        second: list[Tensor | None] = list(trial.tensors)
        for at in jointly:
            first[at] = trial.tensors[at] - 0.7 * other[at]
            second[at] = 0.7 * other[at]
        for at in once:
            second[at] = second[at] if at in jointly else None
        try:
            parts = [subject.learn(x, subject.values, trial.weights) for x in (first, second)]
        except Exception:  # sums that it does not take
            return False
        for whole, *of in zip(trial.outputs, *(part.outputs for part in parts), strict=True):
            if not same(sum(of), whole):
                return False
        for at, whole in enumerate(trial.gradients):
            if whole is None:
                continue
            gradients = [x for part in parts if (x := part.gradients[at]) is not None]
            if at in jointly:
                if not all(same(gradient, whole) for gradient in gradients):
                    return False
            elif not same(torch.stack(gradients).sum(0), whole):
                return False
        return True

    def _takes_none(self, at: int) -> bool:
        trial = self.trials[0]
        tensors: list[Tensor | None] = list(trial.tensors)
        tensors[at] = None
        try:
            with torch.no_grad():
                self.subject.run(tensors, self.subject.values)
        except Exception:  # what it must have
            return False
        return True


def cuts(size: int) -> list[list[int]]:
    """Into two parts and into three, uneven ones where the size allows it."""
    large = size // 2 + 1 if size > 2 else 1
    found = [[large, size - large]]
    if size > 2:
        third = size // 3
        found += [[size - large, large], [size - third - max(third, 1), third, max(third, 1)]]
    return [cut for cut in found if all(cut)]


def part_of(tensor: Tensor, dim: int, outer: int, size: int, start: int, length: int) -> Tensor:
    shape = tensor.shape
    folded = tensor.reshape(*shape[:dim], outer, size, -1, *shape[dim + 1 :])
    return folded.narrow(dim + 1, start, length).reshape(*shape[:dim], -1, *shape[dim + 1 :]).contiguous()


def together(parts: Sequence[Tensor], dim: int, outer: int, cut: Sequence[int]) -> Tensor:
    shape = parts[0].shape
    folded = [
        part.reshape(*shape[:dim], outer, length, -1, *shape[dim + 1 :])
        for part, length in zip(parts, cut, strict=True)
    ]
    return torch.cat(folded, dim + 1).reshape(*shape[:dim], -1, *shape[dim + 1 :])


def same(ours: Any, theirs: Tensor) -> bool:
    return isinstance(ours, Tensor) and difference(ours, theirs) <= TOLERANCE


def _ways(
    outputs: Sequence[Tensor], parts: Sequence[Sequence[Tensor]], size: int, cut: Sequence[int]
) -> tuple[set[str], list[set[At]]]:
    """Marks that fit all outputs, and for each output the places where its parts may lie."""
    marks: set[str] | None = None
    places = []
    for number, whole in enumerate(outputs):
        own = [part[number] for part in parts]
        reduced = {mark for mark, by in _reductions(whole) if _is_reduced(own, whole, by)}
        marks = reduced if marks is None else marks & reduced
        at = (
            (number, dim, outer)
            for dim, outer in places_of(list(whole.shape), size)
            if _lies_so(own, whole, dim, outer, size, cut)
        )
        places.append(set(at))
    return marks or set(), places


def _reductions(whole: Tensor) -> Any:
    return (_BOOLS if whole.dtype == torch.bool else _FLOATS).items()


def _is_reduced(parts: Sequence[Tensor], whole: Tensor, by: Any) -> bool:
    if any(part.shape != whole.shape or part.dtype != whole.dtype for part in parts):
        return False
    return same(by(torch.stack(list(parts)), dim=0), whole)


def _lies_so(
    parts: Sequence[Tensor], whole: Tensor, dim: int, outer: int, size: int, cut: Sequence[int]
) -> bool:
    for part, length in zip(parts, cut, strict=True):
        expected = list(whole.shape)
        expected[dim] = expected[dim] // size * length
        if list(part.shape) != expected or part.dtype != whole.dtype:
            return False
    return same(together(parts, dim, outer, cut), whole)
