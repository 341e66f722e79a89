"""A batch that is given to `train_step` as a whole, cut into the micro-batches that the program is for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...errors import RuntimeFault
from .inputs import Arguments, Call, plain

TensorsOf = Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Tensor]]


@dataclass
class MicroBatches:
    """`rows` are those of one, along the first dim of the inputs at `positions`, in the order of
    `tensors_of` a call."""

    rows: int
    positions: Collection[int]
    tensors_of: TensorsOf
    # Whether the loss is a sum; else it is a mean.
    is_sum: bool
    # Over how much it is the mean, of the tensors of one; else over as much for each.
    count: Callable[[Sequence[Tensor]], Tensor] | None
    # Into how many each batch of the last call was cut.
    numbers: list[int] = field(default_factory=list)

    def cut(self, batches: Sequence[Arguments]) -> list[Arguments]:
        pieces = [self._pieces(*batch) for batch in batches]
        self.numbers = [len(of_one) for of_one in pieces]
        return [piece for of_one in pieces for piece in of_one]

    def shares(self, calls: Sequence[Call]) -> list[float]:
        """What each counts in the loss of its batch."""
        if self.is_sum:
            return [1.0] * len(calls)
        counts, shares = self._counts(calls), list[float]()
        for number in self.numbers:
            shares += _shares(counts[len(shares) : len(shares) + number])
        return shares

    def _counts(self, calls: Sequence[Call]) -> list[float]:
        """Read together: the host waits for the device once at most."""
        if self.count is None:
            return [1.0] * len(calls)
        return torch.stack([self.count(call.tensors) for call in calls]).tolist()

    def _pieces(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Arguments]:
        args, kwargs = tuple(map(plain, args)), {name: plain(x) for name, x in kwargs.items()}
        tensors = self.tensors_of(args, kwargs)
        cut = {id(tensors[at]) for at in self.positions}
        lengths = {tensors[at].shape[0] if tensors[at].dim() else 0 for at in self.positions}
        length = lengths.pop()
        if lengths or length < self.rows or length % self.rows:
            raise RuntimeFault(
                "SW0846",
                f"a batch of {length} rows cannot be cut into micro-batches",
                why=f"its inputs have {sorted(lengths | {length})} rows, the program is for {self.rows}",
                fix=f"give a batch whose rows are a multiple of {self.rows}: leave the rest out, or pad it",
            )
        return [rows_of((args, kwargs), cut, at, at + self.rows) for at in range(0, length, self.rows)]


def _shares(counts: Sequence[float]) -> list[float]:
    total = sum(counts)
    return [count / total if total else float("nan") for count in counts]


def rows_of(call: Arguments, cut: Collection[int], low: int, high: int) -> Arguments:
    """The rows of those tensors of a call that are cut, by their `id`."""
    args, kwargs = pytree.tree_map_only(Tensor, lambda x: x[low:high] if id(x) in cut else x, call)
    return args, kwargs
