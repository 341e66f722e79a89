"""Saving: each rank writes its part of everything, in the names of the single-device model."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, overload
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..runtime.agreement.together import each, together
from ..runtime.programs.boxes import boxes
from ..runtime.programs.regions import Region, cut, within
from .behind import Saving, begin, copies, settle
from .folder import Chunk, Value, Written, commit, prepare, write
from .metadata import Place
from .optimizers import (
    Options,
    groups_of,
    has_state_of_whole,
    merged,
    options_of,
    split_state,
    stepped_whole,
)
from .parts import Part, Parts, parts_of
from .plain import packed, plain
from .streams import random_streams

FORMAT = 1


@overload
def save(
    model: nn.Module,
    optimizer: Optimizer | None,
    path: str | Path,
    extra: Mapping[str, Any] | None = None,
    *,
    wait: Literal[True] = True,
) -> Path: ...


@overload
def save(
    model: nn.Module,
    optimizer: Optimizer | None,
    path: str | Path,
    extra: Mapping[str, Any] | None = None,
    *,
    wait: Literal[False],
) -> Saving: ...


def save(
    model: nn.Module,
    optimizer: Optimizer | None,
    path: str | Path,
    extra: Mapping[str, Any] | None = None,
    *,
    wait: bool = True,
) -> Path | Saving:
    """Writes a checkpoint of a training run; all ranks must call this.

    The folder holds the model's parameters and buffers, the state of the optimizer, the step and seed
    of random numbers, the state of each rank's random generators, and rank 0's `extra`: plain data, and
    objects with a `state_dict()`. Whatever goes wrong, the checkpoint that was there before is whole.

    Without `wait` it is copied to the host and written while training goes on: what is returned says when it
    is `done()`, and its `wait()` raises what went wrong. A rank saves one at a time.
    """
    target = Path(path)
    parts = parts_of(model)
    comm = parts.comm
    settle(comm)

    def mine() -> tuple[list[list[int]], bytes]:
        groups = [] if optimizer is None else groups_of(parts, optimizer)
        return groups, blake2b(packed(plain(extra or {}, "extra")), digest_size=8).digest()

    def ours(ranks: list[tuple[list[list[int]], bytes]]) -> tuple[int, list[list[int]], str]:
        if len({digest for _, digest in ranks}) > 1:
            warnings.warn("the ranks give different `extra` to save: rank 0's is kept", stacklevel=4)
        return prepare(target), merged([groups for groups, _ in ranks]), f"saving/{uuid4().hex}"

    number, groups, key = together(comm, mine, ours)

    def items() -> list[Value | Chunk]:
        items = list(_tensors(parts, optimizer))
        items.append(Value(("shardwright", "random", str(comm.rank)), _random(parts)))
        if comm.rank == 0:
            items += _values(parts, optimizer, groups, extra)
        return items

    if not wait:
        return begin(comm, target, key, number, each(comm, lambda: copies(items())))

    def written() -> Written:
        return write(target, comm.rank, number, items())

    together(comm, written, lambda all_written: commit(target, all_written))
    return target


def _random(parts: Parts) -> Any:
    return random_streams(parts.parallel.values())


def _values(
    parts: Parts,
    optimizer: Optimizer | None,
    groups: list[list[int]],
    extra: Mapping[str, Any] | None,
) -> Iterator[Value]:
    """What rank 0 writes for all."""
    modules = {prefix: model.clock() for prefix, model in parts.parallel.items()}
    about = {"format": FORMAT, "world": parts.comm.world, "modules": modules}
    yield Value(("shardwright", "about"), about)
    if extra is not None:
        yield Value(("extra",), plain(extra, "extra"))
    if optimizer is not None:
        for at, (options, numbers) in enumerate(zip(options_of(optimizer), groups, strict=True)):
            names = [parts.wholes[number].names[0] for number in numbers]
            for key, value in {**options, "params": names}.items():
                value = plain(value, f"the optimizer's {key!r}")
                yield Value(("optimizer", "param_groups", at, key), value)


def _tensors(parts: Parts, optimizer: Optimizer | None) -> Iterator[Value | Chunk]:
    """The pieces of tensors that this rank writes, and the optimizer's states of them."""
    for part, piece, _ in _assigned(parts):
        names = parts.wholes[part.whole].names
        yield from _chunks(parts, part, piece, part.data, [("model", name) for name in names])
    if optimizer is not None:
        yield from states_of(parts, optimizer)


def states_of(
    parts: Parts, optimizer: Optimizer, some: Container[int] | None = None
) -> Iterator[Value | Chunk]:
    """This rank's pieces of the optimizer's states, of all tensors or of those of some numbers."""
    for part, piece, first in _assigned(parts):
        if (some is None or part.whole in some) and not stepped_whole(optimizer, part):
            yield from _states(parts, optimizer, part, piece, first)
    for part in parts.mine:
        if (some is None or part.whole in some) and has_state_of_whole(optimizer, part):
            place = ("optimizer", "state", parts.wholes[part.whole].names[0])
            yield from _undivided(optimizer.state.get(part.data, {}), place)


def _assigned(parts: Parts) -> Iterator[tuple[Part, Region, bool]]:
    """The pieces that this rank writes of its parts, and whether a piece is its tensor's first."""
    seen: set[int] = set()
    for rank, row in enumerate(parts.assigned()):
        for at, piece in row:
            number = parts.table[rank][at][0]
            first = number not in seen
            seen.add(number)
            if rank == parts.comm.rank:
                yield parts.mine[at], piece, first


def _states(
    parts: Parts, optimizer: Optimizer, part: Part, piece: Region, first: bool
) -> Iterator[Value | Chunk]:
    """What is one value for the whole parameter is written by whoever has its first piece."""
    split, other = split_state(parts, optimizer, part)
    place = ("optimizer", "state", parts.wholes[part.whole].names[0])
    for key, tensor in split.items():
        yield from _chunks(parts, part, piece, tensor, [(*place, key)])
    yield from _undivided(other if first else {}, place)


def _undivided(values: Options, place: Place) -> Iterator[Value | Chunk]:
    for key, value in values.items():
        if isinstance(value, Tensor):
            yield from _whole(value, (*place, key))
        elif value is not None:
            yield Value((*place, key), plain(value, f"the optimizer's {key!r}"))


def _chunks(
    parts: Parts, part: Part, piece: Region, tensor: Tensor, places: list[Place]
) -> Iterator[Value | Chunk]:
    factors = parts.wholes[part.whole].factors
    sizes = iter(high - low for low, high in part.region)
    local = [[next(sizes) for _ in dim] for dim in factors]
    data = partial(_piece, tensor, local, within(piece, part.region))
    for box in boxes(piece, factors):
        yield Chunk(places, parts.wholes[part.whole].shape, tensor.dtype, box, data)


def _piece(tensor: Tensor, factors: list[list[int]], region: Region) -> Tensor:
    with torch.no_grad():
        return cut(tensor.detach(), factors, region)


def _whole(tensor: Tensor, place: Place) -> Iterator[Chunk]:
    box = boxes(tuple((0, size) for size in tensor.shape), [[size] for size in tensor.shape])
    yield from (Chunk([place], tensor.shape, tensor.dtype, one, lambda: tensor) for one in box)
