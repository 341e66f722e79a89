"""Which tensors are in the memory of what this rank holds alone: its parts, and what other ranks have not.

A view, `.data` or `.detach()` of a parameter is in the parameter's memory; a copy is somebody's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..programs.program import Program
from ..shards.held import elsewhere, split
from ..shards.shards import Shard
from .part_gradients import PartGradient

if TYPE_CHECKING:
    from ..module import ParallelModule

_watched: list[weakref.ref[ParallelModule]] = []


def watch(model: ParallelModule) -> bool:
    """Whether it has such memory, which is known from now on."""
    has_own = bool(_own(model.program))
    if has_own:
        _watched.append(weakref.ref(model, _watched.remove))
    return has_own


def own_parts_among(tensors: Iterable[object]) -> Iterator[str]:
    """The names of those that are."""
    memory: dict[int, str] | None = None
    for tensor in tensors:
        if isinstance(tensor, PartGradient):
            yield "a gradient"
        elif isinstance(tensor, Tensor):
            memory = _memory() if memory is None else memory
            name = memory.get(_place(tensor))
            if name is not None:
                yield name


def _own(program: Program) -> set[int]:
    tensors = [tensor for tensor in program.tensors.values() if tensor.held]
    return {tensor.id for tensor in (*split(program, tensors), *elsewhere(program, tensors))}


def _memory() -> dict[int, str]:
    """By where it is, whose; also that of gradients."""
    by_place: dict[int, str] = {}
    for shard in _shards():
        name = shard.tensor.names[0]
        by_place[_place(shard.data)] = f"`{name}`"
        if shard.data.grad is not None:
            by_place[_place(shard.data.grad)] = f"the gradient of `{name}`"
    by_place.pop(0, None)
    return by_place


def _shards() -> Iterator[Shard]:
    for model in [model for reference in list(_watched) if (model := reference()) is not None]:
        numbers = _own(model.program)
        yield from (shard for shard in model.shards.held if shard.tensor.id in numbers)


def _place(tensor: Tensor) -> int:
    """Zero for what has no memory of its own."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return 0
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a tensor of tensors, such as a DTensor
        return 0
