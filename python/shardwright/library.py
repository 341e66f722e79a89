"""Operators of our own, where PyTorch's would need far more memory or time.

`torch.ops.shardwright.*` stand in captured graphs and run, differentiably, on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_LIBRARY = torch.library.Library("shardwright", "DEF")
_LIBRARY.define("expert_linear(Tensor x, Tensor weight, Tensor experts, bool transposed) -> Tensor")
# The value that a forward has written into a parameter, `held`, which has its gradient.
_LIBRARY.define("written(Tensor held, Tensor value) -> Tensor")
_LIBRARY.define(
    "experts(Tensor x, Tensor experts, Tensor weights, Tensor up, Tensor down, str activation, bool gated,"
    " bool transposed, bool drops) -> Tensor"
)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""What may stand between the two matrices of an expert."""


def expert_linear(
    x: Tensor, weight: Tensor, experts: Tensor, start: int, total: int, transposed: bool
) -> Tensor:
    """Each row of `x` times the matrix of its expert; zero where the expert is not among those of
    `weight`, which are numbered from `start`. As in an index, negative numbers count from the end of
    all `total` experts, and others are an error."""
    count = weight.shape[0]
    if transposed:
        weight = weight.transpose(1, 2)
    order, rows, rest = _by_expert(experts, start, count, total)
    local, _ = x.index_select(0, order).split([len(order) - rest, rest])
    made = [products(local, weight, rows)] if count else []
    zeros = x.new_zeros(rest, weight.shape[1])
    if count == 0:
        # No value, but still a function of both.
        zeros = zeros + weight.sum() + x[:, :0].sum()
    back = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
    return torch.cat([*made, zeros]).index_select(0, back)


def _whole(x: Tensor, weight: Tensor, experts: Tensor, transposed: bool) -> Tensor:
    return expert_linear(x, weight, experts, 0, weight.shape[0], transposed)


def experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    start: int,
    total: int,
    activation: str,
    gated: bool,
    transposed: bool,
    drops: bool,
) -> Tensor:
    """For each row of `x` the sum over its experts of `weights` times what the expert gives: `up`, the
    activation, `down`. Only experts of `up` count, numbered from `start`. Where some are dropped, the
    number `-total - 1` means no expert."""
    count, slots = up.shape[0], chosen.shape[1]
    if transposed:
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    order, rows, rest = _by_expert(chosen.reshape(-1), start, count, total, drops)
    local = order[: len(order) - rest].clone()
    token = local // slots
    dtype = torch.result_type(x, weights)
    # Sums of several experts in a type of few digits would be rounded each time.
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    summed = x.new_zeros(x.shape[0], down.shape[1], dtype=wide)
    if count == 0:
        # No value, but still a function of all.
        summed = summed + up.sum() + down.sum() + x[:, :0].sum() + weights[:, :0].sum()
    else:
        made = through(x.index_select(0, token), up, down, rows, activation, gated)
        weighed = made * weights.reshape(-1).index_select(0, local).unsqueeze(-1)
        # The same on a GPU each time, and nothing but the numbers is kept.
        summed = summed.index_put((token,), weighed.to(wide), accumulate=True)
    return summed.to(dtype)


Rows = Sequence[int] | Tensor
"""How many rows each expert has. The host reads a tensor where it has to know."""


def through(x: Tensor, up: Tensor, down: Tensor, rows: Rows, activation: str, gated: bool) -> Tensor:
    """Rows in the order of their experts through both matrices of theirs."""
    if _grouped(x, up) and _grouped(x, down):
        return products(between(products(x, up, rows), activation, gated), down, rows)
    pieces = zip(x.split(_listed(rows)), up.unbind(0), down.unbind(0), strict=True)
    return torch.cat([F.linear(between(F.linear(piece, u), activation, gated), d) for piece, u, d in pieces])


def products(x: Tensor, weight: Tensor, rows: Rows) -> Tensor:
    """Each expert's rows times its matrix: one kernel for all where PyTorch and the device have one."""
    if _grouped(x, weight):
        if not isinstance(rows, Tensor):
            rows = torch.tensor(rows, pin_memory=x.is_cuda).to(x.device, non_blocking=True)
        made: Tensor = torch._grouped_mm(x, weight.transpose(1, 2), offs=rows.cumsum(0, dtype=torch.int32))
        return made
    pieces = zip(x.split(_listed(rows)), weight.unbind(0), strict=True)
    return torch.cat([F.linear(piece, w) for piece, w in pieces])


def _listed(rows: Rows) -> list[int]:
    return rows.tolist() if isinstance(rows, Tensor) else list(rows)


def _grouped(x: Tensor, weight: Tensor) -> bool:
    """Whether there is such a kernel: of bfloat16, from Hopper on, for rows that begin at whole 16 bytes."""
    if x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16 or not len(x) or not len(weight):
        return False
    aligned = all(size % 8 == 0 for size in weight.shape[1:])
    return aligned and _has_grouped_products(x.device)


def _has_grouped_products(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and hasattr(torch, "_grouped_mm")
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (9, 0)
    )


def between(x: Tensor, activation: str, gated: bool) -> Tensor:
    function = ACTIVATIONS[activation]
    if not gated:
        return function(x)
    gate, value = x.chunk(2, -1)
    return function(gate) * value


def _by_expert(
    experts: Tensor, start: int, count: int, total: int, drops: bool = False
) -> tuple[Tensor, list[int], int]:
    """The order of rows by expert, those of others last; how many each expert has, and how many others."""
    experts = torch.where(experts < 0, experts + total, experts)
    local = experts - start
    place = torch.where((local >= 0) & (local < count), local, count)
    place = torch.where((experts >= -int(drops)) & (experts < total), place, count + 1)
    order = place.argsort(stable=True)
    # One value for each expert is all that the host reads.
    *rows, rest, beyond = counts(place.index_select(0, order), count + 2).tolist()
    if beyond:
        number = int(experts[order[-1]])
        number = number if number >= total else number - total
        raise IndexError(f"index {number} is out of bounds for dimension 0 with size {total}")
    return order, rows, rest


def counts(sorted_numbers: Tensor, total: int) -> Tensor:
    """How often there is each number below `total`. A `bincount` looks at the largest one first, on the
    host."""
    ends = torch.searchsorted(
        sorted_numbers.contiguous(), torch.arange(total, device=sorted_numbers.device), right=True
    )
    return ends.diff(prepend=ends.new_zeros(1))


def _all_experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    activation: str,
    gated: bool,
    transposed: bool,
    drops: bool,
) -> Tensor:
    if isinstance(x, FakeTensor) or x.is_meta:
        # How many rows each expert has is not known.
        made = down.shape[2 if transposed else 1]
        every = (x[:, :1] + up.sum() + down.sum()) * weights[:, :1]
        return every.expand(-1, made).contiguous()
    return experts(x, chosen, weights, up, down, 0, up.shape[0], activation, gated, transposed, drops)


_LIBRARY.impl("expert_linear", _whole, "CompositeImplicitAutograd")
_LIBRARY.impl("experts", _all_experts, "CompositeImplicitAutograd")


def _written(held: Tensor, value: Tensor) -> Tensor:
    return value.clone(memory_format=torch.contiguous_format)


_LIBRARY.impl("written", _written, "CompositeExplicitAutograd")
torch.library.register_autograd("shardwright::written", lambda context, grad: (grad, None), lib=_LIBRARY)
