"""Rows of tokens for their experts: `sw.dispatch`, `sw.expert_rows` and `sw.combine`.

What is between them is a sparse tensor of PyTorch: its first two dims are experts and tokens, its values are
the rows that there are, in the order of experts and then tokens. Gradients have the rows of what they are
gradients of.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..library import between


def dispatch(x: Tensor, chosen: Tensor, total: int, drops: bool) -> Tensor:
    chosen = _counted(chosen, total)
    wrong = (chosen < -int(drops)) | (chosen >= total)
    if wrong.any():
        number = int(chosen[wrong][0])
        number = number if number >= total else number - total
        raise IndexError(f"index {number} is out of bounds for dimension 0 with size {total}")
    # One column more, of those that are dropped.
    has = torch.zeros(x.shape[0], total + 1, dtype=torch.bool, device=x.device)
    has.scatter_(1, torch.where(chosen < 0, total, chosen), True)
    places = has[:, :total].t().nonzero().t().contiguous()
    rows: Tensor = _Packed.apply(x.index_select(0, places[1]), places, (total, *x.shape))
    return rows


def expert_rows(
    rows: Tensor, up: Tensor, down: Tensor, activation: str, gated: bool, transposed: bool
) -> Tensor:
    if transposed:
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    places, values = rows._indices(), _Values.apply(rows)
    counts = torch.bincount(places[0], minlength=up.shape[0]).tolist()
    pieces = zip(values.split(counts), up.unbind(0), down.unbind(0), strict=True)
    made = [F.linear(between(F.linear(piece, u), activation, gated), d) for piece, u, d in pieces]
    size = (*rows.shape[:2], down.shape[1])
    found: Tensor = _Packed.apply(torch.cat(made), places, size)
    return found


def combine(rows: Tensor, chosen: Tensor, weights: Tensor, total: int, drops: bool) -> Tensor:
    places, values = rows._indices(), _Values.apply(rows)
    experts, tokens = places
    own = _counted(chosen, total).index_select(0, tokens) == experts.unsqueeze(-1)
    # A token may have chosen an expert more than once.
    weight = (weights.index_select(0, tokens) * own).sum(-1, keepdim=True)
    weighed = values * weight
    dtype = torch.result_type(values, weights)
    # Sums of several experts in a type of few digits would be rounded each time.
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    found = values.new_zeros(chosen.shape[0], values.shape[1], dtype=wide)
    # The same on a GPU each time, and nothing but the numbers is kept.
    return found.index_put((tokens,), weighed.to(wide), accumulate=True).to(dtype)


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
