"""Operators of our own, where PyTorch's would need far more memory or time.

`torch.ops.shardwright.*` stand in captured graphs and run, differentiably, on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("shardwright", "DEF")
_LIBRARY.define("expert_linear(Tensor x, Tensor weight, Tensor experts, bool transposed) -> Tensor")
# The value that a forward has written into a parameter, `held`, which has its gradient.
_LIBRARY.define("written(Tensor held, Tensor value) -> Tensor")


def expert_linear(
    x: Tensor, weight: Tensor, experts: Tensor, start: int, total: int, transposed: bool
) -> Tensor:
    """Each row of `x` times the matrix of its expert; zero where the expert is not among those of
    `weight`, which are numbered from `start`. As in an index, negative numbers count from the end of
    all `total` experts, and others are an error."""
    count = weight.shape[0]
    experts = torch.where(experts < 0, experts + total, experts)
    if transposed:
        weight = weight.transpose(1, 2)
    local = experts - start
    place = torch.where((local >= 0) & (local < count), local, count)
    place = torch.where((experts >= 0) & (experts < total), place, count + 1)
    order = place.argsort(stable=True)
    *rows, beyond = torch.bincount(place, minlength=count + 2).tolist()
    if beyond:
        number = int(experts[order[-1]])
        number = number if number >= total else number - total
        raise IndexError(f"index {number} is out of bounds for dimension 0 with size {total}")
    pieces = x.index_select(0, order).split(rows)
    made = [torch.nn.functional.linear(piece, w) for piece, w in zip(pieces, weight.unbind(0), strict=False)]
    rest = x.new_zeros(rows[-1], weight.shape[1])
    if count == 0:
        # No value, but still a function of both.
        rest = rest + weight.sum() + x[:, :0].sum()
    back = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
    return torch.cat([*made, rest]).index_select(0, back)


def _whole(x: Tensor, weight: Tensor, experts: Tensor, transposed: bool) -> Tensor:
    return expert_linear(x, weight, experts, 0, weight.shape[0], transposed)


_LIBRARY.impl("expert_linear", _whole, "CompositeImplicitAutograd")


def _written(held: Tensor, value: Tensor) -> Tensor:
    return value.clone(memory_format=torch.contiguous_format)


_LIBRARY.impl("written", _written, "CompositeExplicitAutograd")
torch.library.register_autograd("shardwright::written", lambda context, grad: (grad, None), lib=_LIBRARY)
