"""For `inputs="local"`: what the ranks' parts of a batch are together.

Where each rank's part lies is known from the model's first program: along each dim of an input, the
ranks' intervals (`Pattern`). Ranks with the same interval hold the same rows; the sizes of different
ones add up to the whole. A batch with fewer rows than parts cannot be told that way: a sampler
announces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...errors import RuntimeFault
from ..communication.verdicts import listed, other_batches
from ..programs.program import Program, TensorInfo
from ..programs.regions import Interval, extents, local_factors, shape_of
from .inputs import Call

# For each rank its intervals along one dim (one for each factor), or nothing where it reads none of it.
Pattern = tuple[tuple[Interval, ...] | None, ...]


@dataclass(frozen=True)
class Split:
    """A dim of a call's tensor that lies in pieces."""

    tensor: int
    dim: int
    pattern: Pattern
    likely: bool = True
    """Whether the first program says so; else the input is one that it does not read."""


class Pieces:
    def __init__(self, program: Program, names: Sequence[str]):
        """`names` of the first program's inputs, by position."""
        self.program = program
        inputs = [t for t in program.tensors.values() if t.kind == "input"]
        self._inputs = {_name(names, t): t for t in sorted(inputs, key=lambda t: t.position)}
        self._patterns = {name: patterns_of(program, t) for name, t in self._inputs.items()}
        # By the sizes of all ranks' parts the size of the whole, of batches that are announced.
        self._announced: dict[tuple[int, ...], int] = {}

    @property
    def batch(self) -> tuple[str, Pattern] | None:
        """The input whose first dim is in pieces, and how."""
        for name, patterns in self._patterns.items():
            if patterns and patterns[0] is not None:
                return name, patterns[0]
        return None

    def announce(self, sizes: Sequence[int], total: int) -> None:
        """Batches whose parts have these sizes are parts of one of `total` rows."""
        known = self._announced.setdefault(tuple(sizes), total)
        if known != total:
            raise RuntimeFault(
                "SW0790",
                f"a batch of {total} and a batch of {known} look alike",
                why=f"the ranks are given {_sizes(sizes)} rows of either, which a step cannot tell apart",
                fix="choose another batch size, or `drop_last=True`",
            )

    def rows(self, program: Program, names: Sequence[str], size: int) -> list[Interval]:
        """The rows that each rank reads of a batch of this size; one row where it reads none."""
        if self.batch is None:
            return [(0, size)] * program.world
        inputs = [
            t for t in program.tensors.values() if t.kind == "input" and _name(names, t) in self._patterns
        ]
        inputs = [t for t in inputs if self._patterns[_name(names, t)][:1] == [self.batch[1]]]
        patterns = {_along(program, t, 0) for t in inputs}
        if len(patterns) != 1 or any(
            p not in (None, self.batch[1]) for ps in self._patterns.values() for p in ps
        ):
            raise RuntimeFault(
                "SW0791",
                "this plan's parts of a batch are not rows of it",
                why="its inputs are split along other dims than the first, or not all in the same way",
                fix='use inputs="global": each rank then takes its part itself',
            )
        [factors] = {tuple(t.factors[0]) for t in inputs}
        return [(0, min(size, 1)) if part is None else _rows(part, factors) for part in patterns.pop()]

    def resized(self, call: Call, names: Sequence[str], size: int) -> Call:
        """A call like this one with a batch of another size."""
        shapes = [list(shape) for shape in call.shapes]
        splits = self.splits(call, names)
        lengths = {split.pattern: call.shapes[split.tensor][split.dim] for split in splits if split.likely}
        for split in splits:
            length = call.shapes[split.tensor][split.dim]
            along = length == lengths.setdefault(split.pattern, length)
            if self.batch and split.dim == 0 and split.pattern == self.batch[1] and along:
                shapes[split.tensor][0] = size
        return replace(call, shapes=[tuple(shape) for shape in shapes])

    def splits(self, call: Call, names: Sequence[str]) -> list[Split]:
        """The dims of a call that are in pieces. An input that the first program does not read may go with
        the batch: all ranks' lengths tell."""
        batch, splits = self.batch, []
        for at, tensor in enumerate(call.tensors):
            name = _at(names, at)
            for dim, pattern in enumerate(self._patterns.get(name, [])):
                if pattern is not None and dim < tensor.dim():
                    splits.append(Split(at, dim, pattern))
            if batch and name not in self._patterns and tensor.dim():
                splits.append(Split(at, 0, batch[1], likely=False))
        return splits

    def sizes(self, call: Call, splits: Sequence[Split]) -> list[int]:
        """This rank's sizes: one for each pattern, and those of inputs that may go with the batch."""
        lengths: dict[Pattern, int] = {}
        for split in splits:
            size = call.shapes[split.tensor][split.dim]
            if split.likely and lengths.setdefault(split.pattern, size) != size:
                raise RuntimeFault(
                    "SW0786",
                    f"the tensors of a batch are {lengths[split.pattern]} and {size} long",
                    why="their dims are split together, so their parts must have one length",
                    fix="give this rank's part of every tensor: `sw.sampler` says which",
                )
        return [*lengths.values(), *(call.shapes[s.tensor][s.dim] for s in splits if not s.likely)]

    def together(self, call: Call, splits: Sequence[Split], sizes: Sequence[Sequence[int]]) -> Call:
        """The call with the whole tensors' shapes; `sizes` are those of all ranks."""
        sure = [split for split in splits if split.likely]
        patterns = list(dict.fromkeys(split.pattern for split in sure))
        rows = {p: tuple(row[at] for row in sizes) for at, p in enumerate(patterns)}
        agreed = [(split, rows[split.pattern]) for split in sure]
        for at, split in enumerate((s for s in splits if not s.likely), len(patterns)):
            of_pieces = tuple(row[at] for row in sizes)
            if of_pieces == rows.setdefault(split.pattern, of_pieces):
                agreed.append((split, of_pieces))
            elif len(set(of_pieces)) > 1:
                raise _everywhere(
                    f"a tensor is {_sizes(of_pieces)} long, and the batch {_sizes(rows[split.pattern])}",
                    "on all ranks it is as long as their part of the batch, or it is the same",
                )
        shapes = [list(shape) for shape in call.shapes]
        for split, of_pieces in agreed:
            shapes[split.tensor][split.dim] = self._total(split.pattern, of_pieces)
        lengths = tuple((split.tensor, split.dim, of_pieces) for split, of_pieces in agreed)
        return replace(call, shapes=[tuple(shape) for shape in shapes], lengths=lengths)

    def _total(self, pattern: Pattern, sizes: Sequence[int]) -> int:
        if tuple(sizes) in self._announced:
            return self._announced[tuple(sizes)]
        total = 0
        for part in _distinct(pattern):
            ranks = [rank for rank, other in enumerate(pattern) if other == part]
            if len({sizes[rank] for rank in ranks}) > 1:
                raise _everywhere(
                    f"the parts of {listed(ranks)} are {_sizes([sizes[rank] for rank in ranks])} long",
                    "these ranks hold the same part of a batch",
                )
            total += sizes[ranks[0]]
        return total


def refuse_misfits(program: Program, call: Call) -> None:
    """The program may divide the whole otherwise than the loader has; all ranks see that alike."""
    inputs = {t.position: t for t in program.tensors.values() if t.kind == "input"}
    _compare_copies(program, list(inputs.values()), call.contents)
    for at, dim, given in call.lengths:
        if at not in inputs:
            continue
        wanted = [_length(program, rank, inputs[at], dim) for rank in range(program.world)]
        needs = [g if w is None else w for w, g in zip(wanted, given, strict=True)]
        if needs != list(given):
            raise _everywhere(
                f"the parts of a batch are {_sizes(given)} long",
                f"of {call.shapes[at][dim]} together, the program's parts are {_sizes(needs)} long",
            )


def patterns_of(program: Program, tensor: TensorInfo) -> list[Pattern | None]:
    """For each dim where the ranks' parts lie; nothing for a dim that is whole, or whose parts overlap."""
    patterns: list[Pattern | None] = []
    for dim, factors in enumerate(tensor.factors):
        pattern = _along(program, tensor, dim)
        whole = tuple((0, size) for size in factors)
        split = any(part not in (None, whole) for part in pattern)
        tiles = sum(prod(extents(part)) for part in _distinct(pattern)) == tensor.shape[dim]
        patterns.append(pattern if split and tiles else None)
    return patterns


def _along(program: Program, tensor: TensorInfo, dim: int) -> Pattern:
    start = sum(len(factors) for factors in tensor.factors[:dim])
    end = start + len(tensor.factors[dim])
    regions = (region_of(program, rank, tensor) for rank in range(program.world))
    return tuple(None if region is None else region[start:end] for region in regions)


def _rows(part: tuple[Interval, ...], factors: Sequence[int]) -> Interval:
    """The interval of rows that intervals of the first dim's factors are."""
    inner = [prod(factors[at + 1 :]) for at in range(len(factors))]
    low = sum(begin * width for (begin, _), width in zip(part, inner, strict=True))
    high = low + prod(extents(part))
    last = sum((end - 1) * width for (_, end), width in zip(part, inner, strict=True))
    if last + 1 != high:
        raise RuntimeFault(
            "SW0791",
            "this plan's parts of a batch are not rows one after another",
            why="it splits an inner factor of the first dim",
            fix='use inputs="global": each rank then takes its part itself',
        )
    return low, high


def _compare_copies(program: Program, inputs: Sequence[TensorInfo], contents: Sequence[int]) -> None:
    """Ranks that hold the same part of all inputs are given the same."""
    first: dict[Any, int] = {}
    for rank, content in enumerate(contents):
        held = tuple(region_of(program, rank, tensor) for tensor in inputs)
        other = first.setdefault(held, rank)
        if contents[other] != content and any(part is not None for part in held):
            error = other_batches([other, rank], "these ranks hold the same part of the inputs")
            error.everywhere = True
            raise error


def region_of(program: Program, rank: int, tensor: TensorInfo) -> Any:
    """The part of an input that a rank reads, or nothing."""
    role, table = program.role(rank), program.ranks[rank]
    return dict(zip(role.inputs, table.inputs, strict=True)).get(tensor.id)


def _length(program: Program, rank: int, tensor: TensorInfo, dim: int) -> int | None:
    region = region_of(program, rank, tensor)
    return None if region is None else shape_of(local_factors(region, tensor.factors))[dim]


def _distinct(pattern: Pattern) -> list[tuple[Interval, ...]]:
    return list(dict.fromkeys(part for part in pattern if part is not None))


def _everywhere(what: str, why: str) -> RuntimeFault:
    error = RuntimeFault(
        "SW0786",
        what,
        why=why,
        fix='give each rank its own part, as `sw.sampler` says, or use inputs="global"',
    )
    error.everywhere = True
    return error


def _sizes(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:-1])) + f" and {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])


def _name(names: Sequence[str], tensor: TensorInfo) -> str:
    return _at(names, tensor.position)


def _at(names: Sequence[str], position: int) -> str:
    return names[position] if position < len(names) else f"number {position}"
