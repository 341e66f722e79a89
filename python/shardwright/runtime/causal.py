"""Causal attention of some of the queries: each sees the keys up to its own place."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

_aten = torch.ops.aten


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, enable_gqa: bool, start: int
) -> Tensor:
    last = start + q.shape[-2]
    # No query sees a key behind the last one's place.
    k, v = k[..., :last, :], v[..., :last, :]
    keys = k.shape[-2]
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if start == 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
    if keys <= start:
        return F.scaled_dot_product_attention(q, k, v, **options)
    if q.device.type == "cpu" and q.dim() == 4 and q.shape[-1] == v.shape[-1]:
        return _InTwo.apply(q, k, v, scale, start)  # type: ignore[no-any-return, no-untyped-call]
    if q.device.type == "cpu" or keys != last:
        return F.scaled_dot_product_attention(q, k, v, seen(q, k, start), **options)
    # No mask in memory: kernels know this form.
    return F.scaled_dot_product_attention(q, k, v, causal_lower_right(q.shape[-2], last), **options)


def seen(q: Tensor, k: Tensor, start: int) -> Tensor:
    """Which keys each query sees."""
    shape = (q.shape[-2], k.shape[-2])
    return torch.ones(shape, dtype=torch.bool, device=q.device).tril(start)


class _InTwo(torch.autograd.Function):
    """The kernel for CPUs knows masks and no places: what is before the first query is seen by all, and among
    the rest the mask begins at the corner. Of the sums of both follows what each has of the result, and with
    the sum of all the gradients of each are those of the whole."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float | None, start: int) -> Tensor:
        passes = [
            _aten._scaled_dot_product_flash_attention_for_cpu(q, *part, 0.0, causal, scale=scale)
            for part, causal in _parts(k, v, start)
        ]
        (before, first), (among, then) = passes
        sums = torch.logaddexp(first, then)
        weights = [(part - sums).exp().unsqueeze(-1) for part in (first, then)]
        result = (before * weights[0] + among * weights[1]).to(q.dtype)
        ctx.save_for_backward(q, k, v, result, sums)
        ctx.scale, ctx.start = scale, start
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, result, sums = ctx.saved_tensors
        gradients = [
            _aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, q, *part, result, sums, 0.0, causal, scale=ctx.scale
            )
            for part, causal in _parts(k, v, ctx.start)
        ]
        of_q, of_k, of_v = zip(*gradients, strict=True)
        return of_q[0] + of_q[1], torch.cat(of_k, -2), torch.cat(of_v, -2), None, None


def _parts(k: Tensor, v: Tensor, start: int) -> tuple[tuple[list[Tensor], bool], tuple[list[Tensor], bool]]:
    """Keys and values, and whether a mask hides some: before the first query, and from there on."""
    before, among = ([x[..., :start, :] for x in (k, v)], [x[..., start:, :] for x in (k, v)])
    return (before, False), (among, True)
