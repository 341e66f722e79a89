"""Rows of tokens for their experts: `sw.dispatch`, `sw.expert_rows` and `sw.combine`.

What is between them is a sparse tensor of PyTorch: its first two dims are experts and tokens, its values are
the rows that there are, in the order of experts and then tokens. Gradients have the rows of what they are
gradients of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..library import counts, through


class Known:
    """What the host knows of places, as long as their memory lives: it needs not look again."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[StorageWeakRef, object, Any]] = {}

    def __setitem__(self, places: Tensor, value: Any) -> None:
        self._of = {key: entry for key, entry in self._of.items() if not entry[0].expired()}
        storage = places.untyped_storage()
        self._of[storage._cdata] = StorageWeakRef(storage), _all_of(places), value

    def get(self, places: Tensor) -> Any:
        entry = self._of.get(places.untyped_storage()._cdata)
        if entry is None or entry[0].expired() or entry[1] != _all_of(places):
            return None
        return entry[2]


def _all_of(places: Tensor) -> object:
    """Not the same for a part of them."""
    return tuple(places.shape), places.stride(), places.storage_offset()


known = Known()
"""How many rows each expert has."""


def dispatch(x: Tensor, chosen: Tensor, total: int, drops: bool) -> Tensor:
    chosen = _counted(chosen, total)
    wrong = (chosen < -int(drops)) | (chosen >= total)
    # Columns more, of those that are dropped and of those that are wrong.
    has = torch.zeros(x.shape[0], total + 2, dtype=torch.bool, device=x.device)
    column = torch.where(chosen < 0, total, chosen)
    has.scatter_(1, torch.where(wrong, total + 1, column), True)
    # The one time that the host looks: how many rows each expert has, and whether all numbers are right.
    *rows_of, _, is_wrong = has.sum(0).tolist()
    if is_wrong:
        number = int(chosen[wrong][0])
        number = number if number >= total else number - total
        raise IndexError(f"index {number} is out of bounds for dimension 0 with size {total}")
    places = _places(has[:, :total].t(), sum(rows_of))
    known[places] = rows_of
    rows: Tensor = _Packed.apply(x.index_select(0, places[1]), places, (total, *x.shape))
    return rows


def _places(has: Tensor, count: int) -> Tensor:
    """Where it is true, in order, of which there are so many: `nonzero` would have to find out."""
    flat = has.reshape(-1)
    numbers = torch.arange(flat.numel(), device=has.device)
    # What is false goes behind all that is true.
    into = torch.where(flat, flat.cumsum(0) - 1, count)
    sorted_numbers = numbers.new_zeros(count + 1).scatter_(0, into, numbers)[:count]
    return torch.stack([sorted_numbers // has.shape[1], sorted_numbers % has.shape[1]])


def expert_rows(
    rows: Tensor, up: Tensor, down: Tensor, activation: str, gated: bool, transposed: bool
) -> Tensor:
    if transposed:
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    places, values = rows._indices(), _Values.apply(rows)
    rows_of = known.get(places)
    if rows_of is None or len(rows_of) != up.shape[0]:
        rows_of = counts(places[0], up.shape[0])
    made = through(values, up, down, rows_of, activation, gated)
    packed: Tensor = _Packed.apply(made, places, (*rows.shape[:2], down.shape[1]))
    return packed


def combine(rows: Tensor, chosen: Tensor, weights: Tensor, total: int, drops: bool) -> Tensor:
    places, values = rows._indices(), _Values.apply(rows)
    experts, tokens = places
    is_chosen = _counted(chosen, total).index_select(0, tokens) == experts.unsqueeze(-1)
    # A token may have chosen an expert more than once.
    weight = (weights.index_select(0, tokens) * is_chosen).sum(-1, keepdim=True)
    weighed = values * weight
    dtype = torch.result_type(values, weights)
    # Sums of several experts in a type of few digits would be rounded each time.
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    summed = values.new_zeros(chosen.shape[0], values.shape[1], dtype=wide)
    # The same on a GPU each time, and nothing but the numbers is kept.
    return summed.index_put((tokens,), weighed.to(wide), accumulate=True).to(dtype)


def packed(values: Tensor, places: Tensor, size: tuple[int, ...]) -> Tensor:
    # `sparse_coo_tensor` of older versions warns that it leaves checks out, also of who asks for that.
    make = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors
    kind = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": values.device}
    rows: Tensor = make(2, 1, list(size), places, values, **kind, pin_memory=False, is_coalesced=True)
    return rows


def _counted(chosen: Tensor, total: int) -> Tensor:
    """From the first expert: negative numbers count from the end, and none is -1."""
    chosen = chosen.to(torch.int64)
    return torch.where(chosen < 0, chosen + total, chosen)


class _Packed(torch.autograd.Function):
    """Rows at their places."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, size: tuple[int, ...]) -> Tensor:
        return packed(values, places, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad._values(), None, None


class _Values(torch.autograd.Function):
    """Rows without their places."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.places, ctx.size = rows._indices(), rows.shape
        return rows._values().view_as(rows._values())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return packed(grad, ctx.places, ctx.size)
