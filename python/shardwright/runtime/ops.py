"""The `sw.*` operators that emitted code calls: see `docs/reference/runtime-operators.md`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..library import expert_linear, experts
from . import opaque
from .causal import causal_attention, seen
from .execution.randomness import Numbers
from .execution.run import current_run
from .programs import regions
from .rows import combine, dispatch, expert_rows

__all__ = [
    "attention",
    "causal_attention",
    "combine",
    "cut",
    "dispatch",
    "draw",
    "dropout",
    "embedding_shard",
    "expert_linear",
    "expert_rows",
    "experts",
    "mean",
    "native_dropout",
    "pick",
]


def cut(x: Tensor, factors: Sequence[Sequence[int]], region: Sequence[tuple[int, int]]) -> Tensor:
    """The part of `x` in a region, an interval for each of the factors of its dims."""
    return regions.cut(x, factors, tuple(region))


def mean(x: Tensor, dims: Sequence[int], keepdim: bool, count: int, dtype: torch.dtype | None) -> Tensor:
    return x.sum(list(dims), keepdim, dtype=dtype) / count


def embedding_shard(weight: Tensor, indices: Tensor, start: int, padding_idx: int, total: int) -> Tensor:
    indices = _checked(indices, (indices >= 0) & (indices < total), "index out of range in self")
    rows = weight.shape[0]
    local = indices - start
    other = (local < 0) | (local >= rows)
    if rows == 0:
        # No value, but still a function of the weight.
        return weight.new_zeros(*indices.shape, *weight.shape[1:]) + weight.sum()
    padding = padding_idx - start if start <= padding_idx < start + rows else -1
    embedded = torch.embedding(weight, local.masked_fill(other, 0), padding)
    return embedded.masked_fill(other.unsqueeze(-1), 0)


def pick(x: Tensor, targets: Tensor, dim: int, start: int, ignore_index: int, total: int) -> Tensor:
    valid = ((targets >= 0) & (targets < total)) | (targets == ignore_index)
    targets = _checked(targets, valid, "Target {} is out of bounds.")
    columns = x.shape[dim]
    if columns == 0:
        return x.sum(dim)
    local = targets - start
    other = (local < 0) | (local >= columns) | (targets == ignore_index)
    picked = x.gather(dim, local.masked_fill(other, 0).unsqueeze(dim)).squeeze(dim)
    return picked.masked_fill(other, 0)


def dropout(x: Tensor, p: float, operator: int, slot: int) -> Tensor:
    return native_dropout(x, p, operator, slot)[0]


def native_dropout(x: Tensor, p: float, operator: int, slot: int) -> tuple[Tensor, Tensor]:
    if p == 1:
        return x * 0, torch.zeros_like(x, dtype=torch.bool)
    mask = _drawn(x.shape, Numbers("keep", 1 - p), operator, slot)
    # The mask first: then only its bytes are kept for backward.
    return x * mask * (1 / (1 - p)), mask


def draw(kind: str, size: Sequence[int], p: float, dtype: torch.dtype, operator: int, slot: int) -> Tensor:
    return _drawn(size, Numbers(kind, p, dtype), operator, slot)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    start: int,
    operator: int,
    slot: int,
) -> Tensor:
    if enable_gqa:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
        v = v.repeat_interleave(q.shape[-3] // v.shape[-3], -3)
    # As PyTorch does, half of the scale on each side: products stay small in half precision.
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    half = abs(scale) ** 0.5
    scores = (q * half) @ (k * math.copysign(half, scale)).transpose(-2, -1)
    if is_causal:
        mask = seen(q, k, start)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    # A row without any key gives zeros, not NaN.
    probabilities = torch.ops.aten._safe_softmax.default(scores, -1)
    return dropout(probabilities, dropout_p, operator, slot) @ v


def _checked(numbers: Tensor, valid: Tensor, message: str) -> Tensor:
    """PyTorch's own error for numbers that the whole does not have. Where it would have to wait for the
    device, the device itself stops, as PyTorch's own kernels make it."""
    if numbers.device.type != "cpu":
        torch._assert_async(valid.all(), message)
    elif torch.compiler.is_compiling():
        return opaque.within(numbers, valid, message)
    else:
        opaque.refuse_invalid(numbers, valid, message)
    return numbers


def _drawn(shape: Sequence[int], numbers: Numbers, operator: int, slot: int) -> Tensor:
    if torch.compiler.is_compiling():
        return opaque.drawn(operator, slot, shape, numbers)
    run = current_run()
    return run.masks(operator, slot, shape, numbers, run.comm.device)
