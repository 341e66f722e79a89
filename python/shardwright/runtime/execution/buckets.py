"""Gradients of several leaves, reduced in one message while backward goes on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..communication.comm import Comm, Ranks
from ..guards.part_gradients import writable

# By the number of the message in its code, its type and its size: several codes may send messages.
Kept = dict[tuple[int, torch.dtype, int], Tensor]


class Bucket:
    """Gradients of one dtype, sent in this or another. Until `wait` they are on the way.

    `kept` holds the buffers of earlier steps, by the number of the reduction in its step; fresh memory of
    this size costs more than the copy.
    """

    def __init__(
        self,
        comm: Comm,
        leaves: Sequence[Tensor],
        ranks: Ranks,
        number: int,
        kept: Kept,
        dtype: torch.dtype | None = None,
    ):
        self._leaves = leaves
        self._ids = {id(leaf) for leaf in leaves}
        self._dtype = gradient_dtype(leaves[0])
        self._flat = _flattened(leaves, (number, dtype or self._dtype), kept)
        self._work = comm.all_reduce(self._flat, ranks, "sum") if self._flat.numel() else None

    def has(self, leaf: Tensor) -> bool:
        return id(leaf) in self._ids

    def wait(self) -> None:
        """The leaves' gradients become views of the message: nothing is copied."""
        if self._work is not None:
            self._work.wait()
        parts = torch.split(self._flat, [leaf.numel() for leaf in self._leaves])
        for leaf, part in zip(self._leaves, parts, strict=True):
            leaf.grad = part.view(leaf.shape).to(self._dtype)


def gradient_dtype(leaf: Tensor) -> torch.dtype:
    """A leaf that is a cast has gradients of the dtype that it was cast from."""
    return leaf.grad_dtype or leaf.dtype


def gradient_of(leaf: Tensor) -> Tensor:
    """Zeros where none has arisen; the leaf gives its own up."""
    grad, leaf.grad = leaf.grad, None
    return torch.zeros_like(leaf, dtype=gradient_dtype(leaf)) if grad is None else writable(grad)


def _flattened(leaves: Sequence[Tensor], key: tuple[int, torch.dtype], kept: Kept) -> Tensor:
    """All gradients in one buffer."""
    grads = [gradient_of(leaf).to(key[1]) for leaf in leaves]
    if len(grads) == 1 and grads[0].is_contiguous():
        return grads[0].detach().view(-1)
    parts = [grad.reshape(-1) for grad in grads]
    place = (*key, sum(part.numel() for part in parts))
    known = kept.get(place)
    if known is not None and _is_free(known):
        return torch.cat(parts, out=known)
    kept[place] = torch.cat(parts)
    return kept[place]


def _is_free(buffer: Tensor) -> bool:
    """Whether nobody holds a gradient of an earlier step, which would be a view of the buffer."""
    storage = buffer.untyped_storage()
    # The buffer, and the object that asks.
    return bool(torch._C._storage_Use_Count(storage._cdata) <= 2)  # type: ignore[attr-defined]
