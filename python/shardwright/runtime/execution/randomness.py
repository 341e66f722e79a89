"""Random numbers that do not depend on which rank draws them, or how often.

*Keyed*: a number is a function of what it is for (seed, step, micro-batch, operator) and of its place in
the whole tensor (`counting`). So replicas agree, shards differ, recomputation repeats, and neither the
device nor the division makes a difference.

*Single-device*: at the start of a forward the masks of all random operators are drawn whole, in the
order of the graph, from PyTorch's default CPU generator, as the plain module would; each rank keeps
its regions. All ranks must have seeded that generator alike. For comparisons, not for speed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from ...errors import RuntimeFault
from ...support.random_generators import seeded
from ..programs.program import Draw, Program
from ..programs.regions import Region, cut, flat, local_factors, shape_of, whole
from .counting import Places, drawn, keys_of


class Numbers(NamedTuple):
    """What is drawn: a mask that keeps with a probability, or numbers of a distribution."""

    kind: str
    p: float
    dtype: torch.dtype = torch.bool

    def into(self, empty: Tensor, generator: torch.Generator) -> Tensor:
        if self.kind == "uniform":
            return empty.uniform_(generator=generator)
        if self.kind == "normal":
            return empty.normal_(generator=generator)
        if self.kind == "exponential":
            return empty.exponential_(self.p, generator=generator)
        if self.kind == "integers":
            return empty.random_(0, int(self.p), generator=generator)
        return empty.bernoulli_(self.p, generator=generator)


# (operator, slot, shape, numbers, device) -> what is drawn
Masks = Callable[[int, int, Sequence[int], Numbers, torch.device], Tensor]
# (path, call) -> around that call of a module that runs as it is
Randomness = Callable[[str, int], AbstractContextManager[None]]

MODES = ("keyed", "single-device")
# Refuses to draw what the single device draws.
NOT_KNOWN = "SW0711"
DISTRIBUTIONS = ("uniform", "normal", "bernoulli", "exponential", "integers")


def key_of(seed: int, step: int, micro_batch: int, operator: int, region: Region) -> int:
    """The same on every machine and in every version of Python."""
    numbers = [seed, step, micro_batch, operator, *(end for interval in region for end in interval)]
    digest = blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def keyed_masks(program: Program, rank: int, seed: int, step: int, micro_batch: int) -> Masks:
    regions = program.ranks[rank].random

    def mask(
        operator: int, slot: int, shape: Sequence[int], numbers: Numbers, device: torch.device
    ) -> Tensor:
        region = regions[operator][slot]
        places = _places(program, operator, region, tuple(shape))
        if places is None:
            # It is not known of which whole this is a part: it is drawn for itself.
            key = key_of(seed, step, micro_batch, operator, region)
            places = Places.from_region(list(shape), tuple((0, size) for size in shape))
        else:
            # Numbers of operators are others where another one is written as several.
            key = key_of(seed, step, micro_batch, program.draws[operator].number, ())
        return drawn(*numbers, shape, keys_of(key), places, device)

    return mask


def _places(program: Program, operator: int, region: Region, shape: tuple[int, ...]) -> Places | None:
    draw = program.draws[operator].draw if operator in program.draws else None
    if draw is None or draw.tensor not in program.tensors or (draw.kind == "attention" and draw.keys is None):
        return None
    factors, region = _drawn_of(program, draw, region)
    if len(flat(factors)) != len(region) or shape_of(local_factors(region, factors)) != shape:
        return None
    return Places.from_region(flat(factors), region)


def keyed_randomness(seed: int, step: int, micro_batch: int, device: torch.device) -> Randomness:
    """For modules that run as they are: their calls draw from generators of which each has one seed."""

    def around(path: str, call: int) -> AbstractContextManager[None]:
        name = int.from_bytes(blake2b(path.encode(), digest_size=7).digest(), "little")
        return seeded(key_of(seed, step, micro_batch, name, ((call, call),)) % 2**63, device)

    return around


def unknown_randomness(path: str, call: int) -> NoReturn:
    raise RuntimeFault(
        "SW0711",
        f"the single device's random numbers are not known for `{path}`, which runs as it is",
        why="they are drawn ahead in the order of the graph, which does not have what this module draws",
        fix='use randomness="keyed"',
    )


def single_device_masks(program: Program, rank: int, generator: torch.Generator) -> Masks:
    if program.in_slices and program.random:
        raise RuntimeFault(
            "SW0711",
            "the single device's random numbers are not known for slices of the sequence",
            why="under `tokens` slices draw by themselves, while the single device draws for all tokens",
            fix='use randomness="keyed"',
        )
    regions = program.ranks[rank].random
    kept: dict[tuple[int, int], Tensor] = {}
    for draw in program.random:
        full = _drawn(program, draw, generator)
        for slot, region in enumerate(regions.get(draw.op, [])):
            kept[draw.op, slot] = _part(program, draw, full, region)

    def mask(
        operator: int, slot: int, shape: Sequence[int], numbers: Numbers, device: torch.device
    ) -> Tensor:
        kept_mask = kept.get((operator, slot))
        if kept_mask is None or tuple(kept_mask.shape) != tuple(shape):
            has = "no mask" if kept_mask is None else f"a mask of shape {tuple(kept_mask.shape)}"
            raise RuntimeFault(
                "SW0711",
                f"the single device's random numbers are not known for operator {operator}",
                why=f"the program's table has {has}, the operator draws {tuple(shape)}",
                fix='use randomness="keyed"',
            )
        return kept_mask.to(device)

    return mask


def _drawn(program: Program, draw: Draw, generator: torch.Generator) -> Tensor:
    """The whole mask, or all numbers, drawn as PyTorch does into a tensor that lies as in the model."""
    if draw.tensor not in program.tensors or (draw.kind == "attention" and draw.keys is None):
        raise RuntimeFault(
            "SW0711",
            f"the single device's random numbers are not known for operator {draw.op}",
            why="the program's table does not say what shape it draws",
            fix='use randomness="keyed"',
        )
    info = program.tensors[draw.tensor]
    shape = list(info.shape)
    if draw.keys is not None:
        shape[-1] = draw.keys
    order = draw.order or list(range(len(shape)))
    if draw.kind in DISTRIBUTIONS:
        numbers = Numbers(draw.kind, draw.p, info.dtype)
    else:
        numbers = Numbers("keep", 1 - draw.p)
    lies = torch.empty([shape[dim] for dim in order], dtype=numbers.dtype)
    drawn = lies.permute([order.index(dim) for dim in range(len(shape))])
    # A dropout of everything draws nothing, and reads no mask.
    return drawn if numbers.kind == "keep" and draw.p == 1 else numbers.into(drawn, generator)


def _part(program: Program, draw: Draw, full: Tensor, region: Region) -> Tensor:
    return cut(full, *_drawn_of(program, draw, region)).clone()


def _drawn_of(program: Program, draw: Draw, region: Region) -> tuple[list[list[int]], Region]:
    """The factors of what is drawn as a whole, and a rank's region of it."""
    factors = program.tensors[draw.tensor].factors
    if draw.keys is not None:
        before = sum(len(dim) for dim in factors[:-1])
        factors = [*factors[:-1], [draw.keys]]
        region = (*region[:before], *whole([[draw.keys]]))
    return factors, region
