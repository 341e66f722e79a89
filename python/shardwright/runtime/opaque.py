"""What `torch.compile` does not look into: the program's random numbers, and errors that depend on values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .execution.randomness import Numbers
from .execution.run import current_run

_LIBRARY = torch.library.Library("shardwright", "FRAGMENT")
# Told to be random, so that it is neither folded nor drawn again in backward.
_LIBRARY.define(
    "drawn(Tensor operator, int slot, int[] size, str kind, float p, ScalarType dtype) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_LIBRARY.define("within(Tensor numbers, Tensor valid, str message) -> Tensor")


def drawn(operator: int | Tensor, slot: int, size: Sequence[int], numbers: Numbers) -> Tensor:
    """The operator's number is a tensor where the uses of a function differ in it: one code for all."""
    if not isinstance(operator, Tensor):
        operator = torch.full((), operator, dtype=torch.int64, device="cpu")
    made: Tensor = torch.ops.shardwright.drawn(operator, slot, list(size), *numbers)
    return made


def within(numbers: Tensor, valid: Tensor, message: str) -> Tensor:
    """The numbers, if all are valid."""
    made: Tensor = torch.ops.shardwright.within(numbers, valid, message)
    return made


def refuse_invalid(numbers: Tensor, valid: Tensor, message: str) -> None:
    if not valid.all():
        raise IndexError(message.format(int(numbers[~valid][0])))


def _drawn(operator: Tensor, slot: int, size: list[int], kind: str, p: float, dtype: torch.dtype) -> Tensor:
    run = current_run()
    return run.masks(int(operator), slot, size, Numbers(kind, p, dtype), run.comm.device)


def _like_drawn(
    operator: Tensor, slot: int, size: list[int], kind: str, p: float, dtype: torch.dtype
) -> Tensor:
    return torch.empty(size, dtype=dtype, device=current_run().comm.device)


def _within(numbers: Tensor, valid: Tensor, message: str) -> Tensor:
    refuse_invalid(numbers, valid, message)
    return numbers.clone()


def _like_within(numbers: Tensor, valid: Tensor, message: str) -> Tensor:
    return torch.empty_like(numbers)


for _name, _does, _like in (("drawn", _drawn, _like_drawn), ("within", _within, _like_within)):
    _LIBRARY.impl(_name, _does, "CompositeExplicitAutograd")
    torch.library.register_fake(f"shardwright::{_name}", _like, lib=_LIBRARY)
