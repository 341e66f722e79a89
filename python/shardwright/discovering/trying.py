"""Whether a split holds: the parts' results, put together, are the whole's, values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from .._core import places_of
from ..capture.lines import said_by
from ..rules.verifying import TOLERANCE, difference
from .reading import NUMBER, Forced, Reads, is_choice, untested, ways
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
    why: str = ""
    """A split does not hold: of the one that was asked for last."""

    @classmethod
    def from_subject(cls, subject: Subject) -> Trying:
        trials = [subject.trial(subject.shapes, subject.values, 1)]
        # What is a sum of small numbers only, or of positive ones, is none.
        for seed, scale in ((2, 1.0), (3, 0.05), (4, 20.0)):
            try:
                trial = subject.trial(subject.shapes, subject.values, seed, scale)
            except Exception:  # numbers that it does not take
                continue
            if is_finite(trial):
                trials.append(trial)
        if subject.thorough:
            trials += _of_batches(subject)
        made = cls(subject, trials, [])
        made.nullable = [at for at in range(len(subject.samples)) if made._takes_none(at)]
        return made

    def holds(self, split: Split) -> Holds | None:
        """How its parts are put together, if that is the same in all trials and with all cuts."""
        holds = self._values(split, [])
        others = {at for at, _, _ in split.inputs}
        for at in self.nullable:
            if holds is None and at not in others:
                holds = self._values(split, [at])
                if holds is not None and holds.mark != "+":
                    holds = None
        if holds is None or holds.mark not in ("", "+"):
            # Where a gradient flows, nothing is split by a maximum.
            return holds
        if self._gradients(split, holds):
            return holds
        self.why = "the gradients of its parts are not those of the whole"
        return None

    def _values(self, split: Split, once: list[int]) -> Holds | None:
        left: tuple[set[str], list[set[At]]] | None = None
        for trial in self.trials:
            for cut in cuts(split.size):
                self.subject.require_time()
                parts = self._parts(trial, split, cut, once)
                if parts is None:
                    return None
                self.why = "what its parts give is not what the whole gives"
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
        return Holds("".join(marks), [next(iter(kinds)) for kinds in places] if not marks else [], once)

    def _parts(
        self,
        trial: Trial,
        split: Split,
        cut: Sequence[int],
        once: Sequence[int],
        reads: Sequence[Reads] | None = None,
    ) -> list[list[Tensor]] | None:
        outputs: list[list[Tensor]] = []
        self.subject.settle(trial.held)
        for number, (tensors, values) in enumerate(self._given(trial, split, cut, once)):
            try:
                with torch.no_grad(), nullcontext() if reads is None else reads[number]:
                    outputs.append([x.detach() for x in self.subject.run(tensors, values)])
            except Exception as error:  # parts that it does not take
                self.why = f"it does not run on parts of them ({said_by(error)})"
                return None
            if len(outputs[number]) != len(trial.outputs):
                return None
        return outputs

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

    def untested(self, split: Split, holds: Holds) -> str | None:
        """Of a split that holds a line that might decide otherwise for a part, and was never seen to."""
        for at in {at for at, _, _ in split.inputs} if self.subject.by_rows else ():
            rows = self.subject.samples[at]
            if not self.subject.is_float(at) and bool((rows == rows[:1]).all()):
                return f"all rows of tensor {at} are alike in the example, and it takes no others"
        wholes, parts = [], []
        for trial in self.trials:
            for cut in cuts(split.size):
                self.subject.require_time()
                clean = [*self._kept(trial, split)]
                wholes.append(Reads(clean))
                parts.append([Reads(clean) for _ in cut])
                self.subject.settle(trial.held)
                with torch.no_grad(), wholes[-1]:
                    self.subject.run(trial.tensors, self.subject.values)
                self._parts(trial, split, cut, holds.once, parts[-1])
        left = untested(wholes, parts)
        for line, reads in left.items():
            if not is_choice(reads):
                said = "of what would be divided, and a part may have another one"
                return f"{line.removesuffix(NUMBER)} reads {reads[0]!r} {said}"
        for forced in ways(left):
            if not self._goes_otherwise(split, holds, forced):
                return (
                    f"where {forced[0]} reads {not left[forced[0]][0]} in a part and not in the whole,"
                    " it gives something else"
                )
        return None

    def _kept(self, trial: Trial, split: Split) -> Iterator[Tensor]:
        """What every part has whole."""
        divided = {operand for operand, _, _ in split.inputs}
        yield from (x for at, x in enumerate(trial.tensors) if at not in divided)
        if self.subject.module is not None:
            yield from self.subject.module.state.values()

    def _goes_otherwise(self, split: Split, holds: Holds, forced: Forced) -> bool:
        """Whether all is as it was, or an error is raised, if a part goes another way."""
        for trial in self.trials:
            for cut in cuts(split.size):
                self.subject.require_time()
                for at in range(len(cut)):
                    clean = [*self._kept(trial, split)]
                    reads = [Reads(clean, forced if at == part else None) for part in range(len(cut))]
                    parts = self._parts(trial, split, cut, holds.once, reads)
                    if parts is not None and not self._is_put_together(trial, split, holds, cut, parts):
                        return False
        return True

    def _is_put_together(
        self, trial: Trial, split: Split, holds: Holds, cut: Sequence[int], parts: Sequence[Sequence[Tensor]]
    ) -> bool:
        marks, places = _ways(trial.outputs, parts, split.size, cut)
        return (
            holds.mark in marks
            if holds.mark
            else all(at in kinds for at, kinds in zip(holds.outputs, places, strict=True))
        )

    def _gradients(self, split: Split, holds: Holds) -> bool:
        return all(
            self._gradients_of(trial, split, holds, cut) for trial in self.trials for cut in cuts(split.size)
        )

    def _gradients_of(self, trial: Trial, split: Split, holds: Holds, cut: Sequence[int]) -> bool:
        divided = {operand: (dim, outer) for operand, dim, outer in split.inputs}
        parts, start = [], 0
        self.subject.settle(trial.held)
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
            gradients = [part[operand] for part in parts]
            if whole is None:
                continue
            given = [x for x in gradients if x is not None]
            if operand in divided:
                dim, outer = divided[operand]
                joined = together(given, dim, outer, cut)
            else:
                joined = torch.stack(given).sum(0)
            if not same(joined, whole):
                return False
        return True

    def linear(self, once: Sequence[int]) -> list[list[int]]:
        """The least sets of tensors in which the function is linear jointly."""
        if not all(output.dtype.is_floating_point for output in self.trials[0].outputs):
            return []
        floats = [at for at in range(len(self.subject.samples)) if self.subject.is_float(at)]
        groups: list[list[int]] = []
        for count in range(1, min(len(floats), _MOST_JOINTLY) + 1):
            for jointly in combinations(floats, count):
                known = any(set(group) <= set(jointly) for group in groups)
                if not known and self.is_linear(jointly, once):
                    groups.append(list(jointly))
        return groups

    def is_linear(self, jointly: Sequence[int], once: Sequence[int]) -> bool:
        return all(self._is_linear(trial, jointly, once) for trial in self.trials)

    def _is_linear(self, trial: Trial, jointly: Sequence[int], once: Sequence[int]) -> bool:
        """Of two partial sums, of which one is not near half of the whole."""
        subject = self.subject
        subject.settle(trial.held)
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
        for whole, *terms in zip(trial.outputs, *(part.outputs for part in parts), strict=True):
            if not same(sum(terms), whole):
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


def is_finite(trial: Trial) -> bool:
    return all(bool(x.isfinite().all()) for x in [*trial.outputs, *trial.gradients] if x is not None)


def _of_batches(subject: Subject) -> list[Trial]:
    """What random numbers hardly give: the example itself, rows that are nearly alike, one above all."""
    trials = [lambda: subject.trial_of(example_of(subject), subject.values, 0)]
    trials += [partial(_changed, subject, seed, change) for seed, change in enumerate((alike, led), 5)]
    trials += [partial(_changed, subject, 7, partial(alike, dim=1)), partial(_changed, subject, 8, apart)]
    of_batches = []
    for make in trials:
        try:
            trial = make()
        except Exception:  # numbers that it does not take
            continue
        if is_finite(trial):
            of_batches.append(trial)
    return of_batches


def example_of(subject: Subject) -> list[Tensor]:
    return [x.double() if x.dtype.is_floating_point else x.clone() for x in subject.samples]


def _changed(subject: Subject, seed: int, change: Callable[[Tensor], Tensor]) -> Trial:
    drawn = subject.draw(subject.shapes, seed)
    tensors = [change(x) if x.dtype.is_floating_point else x for x in drawn]
    return subject.trial_of(tensors, subject.values, seed)


def alike(x: Tensor, dim: int = 0) -> Tensor:
    return x.narrow(dim, 0, 1) + 0.01 * x if x.dim() > dim else x


def led(x: Tensor) -> Tensor:
    return torch.cat([10 * x[:1], x[1:]]) if x.dim() else x


def apart(x: Tensor) -> Tensor:
    """Each row of a size and a sign of its own."""
    if not x.dim():
        return x
    sizes = (-1.7) ** torch.arange(len(x), dtype=x.dtype) / 3
    return x * sizes.reshape(-1, *[1] * (x.dim() - 1))


def cuts(size: int) -> list[list[int]]:
    """Into two parts and into three, uneven ones where the size allows it."""
    large = size // 2 + 1 if size > 2 else 1
    candidates = [[large, size - large]]
    if size > 2:
        third = size // 3
        candidates += [[size - large, large], [size - third - max(third, 1), third, max(third, 1)]]
    return [cut for cut in candidates if all(cut)]


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
        pieces = [part[number] for part in parts]
        reduced = {mark for mark, by in _reductions(whole) if _is_reduced(pieces, whole, by)}
        marks = reduced if marks is None else marks & reduced
        at = (
            (number, dim, outer)
            for dim, outer in places_of(list(whole.shape), size)
            if _lies_so(pieces, whole, dim, outer, size, cut)
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
