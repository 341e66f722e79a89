"""Arguments that a call does not keep for its backward, which is given them again.

Autograd saves an argument, or a view of all of it. Instead of that stays a note of which argument it is and
how it lies; what it saves besides is kept as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .offload import Away


@dataclass
class _Note:
    argument: int
    size: torch.Size
    stride: tuple[int, ...]


class Forgotten:
    def __init__(self, arguments: Sequence[Tensor], away: Away | None = None):
        """What it saves besides goes `away`, if that is given."""
        self._away = away
        self._at = {_place(x): number for number, x in enumerate(arguments) if _is_plain(x)}
        self._strides = [() if x.is_sparse else x.stride() for x in arguments]
        self._given: Sequence[Tensor] = ()

    def hooks(self) -> Any:
        return saved_tensors_hooks(self.pack, self.unpack)

    @contextmanager
    def given(self, arguments: Sequence[Tensor]) -> Iterator[None]:
        """While backward runs: the same values, wherever they lie now."""
        self.give(arguments)
        try:
            yield
        finally:
            self._given = ()

    def give(self, arguments: Sequence[Tensor]) -> None:
        """From now on."""
        pairs = zip(arguments, self._strides, strict=True)
        self._given = [_laid(x, stride) for x, stride in pairs]

    def pack(self, x: Tensor) -> Any:
        number = self._at.get(_place(x)) if _is_plain(x) else None
        if number is not None:
            return _Note(number, x.size(), x.stride())
        return self._away.pack(x) if self._away else x

    def unpack(self, kept: Any) -> Tensor:
        if not isinstance(kept, _Note):
            return self._away.unpack(kept) if self._away else kept
        x = self._given[kept.argument]
        return x.as_strided(kept.size, kept.stride, x.storage_offset())


def _is_plain(x: Tensor) -> bool:
    """Whether each of its elements has memory of its own and is what lies there. Others are kept."""
    if x.is_sparse:
        return False
    apart = all(stride or size == 1 for size, stride in zip(x.shape, x.stride(), strict=True))
    return apart and x.numel() > 0 and not x.is_conj() and not x.is_neg()


def _place(x: Tensor) -> tuple[int, int, int, torch.dtype]:
    """Of a tensor and of the views of all of it."""
    return x.untyped_storage().data_ptr(), int(x.storage_offset()), x.numel(), x.dtype


def _laid(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    if x.is_sparse:
        return x
    x = x.resolve_conj().resolve_neg()
    if x.stride() == stride or 0 in stride:
        return x
    return torch.empty_strided(x.size(), stride, dtype=x.dtype, device=x.device).copy_(x)
