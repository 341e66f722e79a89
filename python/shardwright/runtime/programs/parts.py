"""Which part of an output leaves on this rank."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor

from ...errors import RuntimeFault
from .program import Program
from .regions import Factors, Region, cut, local_factors, shape_of, whole


@dataclass(frozen=True)
class OutputPart:
    """A part of a tensor, which is all of it if the output leaves whole."""

    factors: Factors
    region: Region

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(local_factors(self.region, self.factors))

    @property
    def is_whole(self) -> bool:
        return self.region == whole(self.factors)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part as `whole[part.slices]`. A part of a fused dim, `(3 h d)` split in `h`, has none."""
        intervals = iter(self.region)
        return tuple(_slice(dim, [next(intervals) for _ in dim]) for dim in map(list, self.factors))

    def of(self, tensor: Tensor) -> Tensor:
        """The same part of a whole tensor of that shape."""
        return cut(tensor, self.factors, self.region)


def output_parts(program: Program, rank: int, names: list[str]) -> dict[str, OutputPart | None]:
    """By name, for each output that leaves on some rank; `None` where this rank has no part."""
    regions = program.ranks[rank].outputs
    tensors: dict[int, int] = {}
    for other in program.roles:
        tensors |= {at: output.tensor for at, output in enumerate(other.outputs) if output is not None}
    parts: dict[str, OutputPart | None] = {}
    for at in sorted(tensors):
        region = regions[at]
        factors = program.tensors[tensors[at]].factors
        parts[names[at] if names else str(at)] = None if region is None else OutputPart(factors, region)
    return parts


def asks_for_more(program: Program) -> bool:
    """Whether more than the loss leaves: scalars, and something else."""
    outputs = [output for role in program.roles for output in role.outputs if output is not None]
    scalar = {program.tensors[output.tensor].shape == () for output in outputs}
    return len(scalar) == 2


def _slice(sizes: list[int], intervals: list[tuple[int, int]]) -> slice:
    """An interval of a dim: one index of each outer factor, an interval of one, all of the inner ones."""
    start, split = 0, False
    for at, (low, high) in enumerate(intervals):
        inner = prod(sizes[at + 1 :])
        start += low * inner
        split = split or high - low != 1
        if split and intervals[at + 1 :] != [(0, rest) for rest in sizes[at + 1 :]]:
            raise RuntimeFault(
                "SW0733",
                "a part of an output is no slice",
                why=f"a dim of factors {sizes} is split in an inner one, at {intervals}",
                fix="use `part.of(tensor)`, which takes this part out of a whole tensor",
            )
        if split:
            return slice(start, start + (high - low) * inner)
    return slice(start, start + 1)
