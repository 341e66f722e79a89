"""Gradients of parameters: made whole, and brought to the shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import collectives
from ..buckets import Bucket, gradient_dtype, gradient_of
from ..gathers import Scattering
from ..profiles import spanned
from .gathered import Gathered

# So many gradients may be on their way to the host.
HANDED = 16


class Gradients(Gathered):
    @spanned
    def reduce_gradients(self, group: int, leaves: Sequence[Tensor]) -> None:
        ranks = self._in_group("reduce_gradients", group, sum(map(self._sent, leaves)))
        self._reductions += 1
        if any(bucket.has(leaf) for bucket in self._buckets for leaf in leaves):
            self._settle()
        dtypes = list(dict.fromkeys(map(gradient_dtype, leaves)))
        for dtype in dtypes if len(ranks) > 1 else []:
            of_dtype = [leaf for leaf in leaves if gradient_dtype(leaf) == dtype]
            sent = self.worker.reduce
            self._buckets.append(Bucket(self.comm, of_dtype, ranks, self._reductions, self.worker.kept, sent))

    @spanned
    def exchange_gradients(self, number: int, leaves: Sequence[Tensor], shards: Sequence[int]) -> None:
        self._settle()
        reduce = self.worker.reduce
        grads = [gradient_of(leaf).to(reduce or gradient_dtype(leaf)) for leaf in leaves]
        targets = self._exchange("exchange_gradients", number, grads, reduce)
        for shard, target in zip(shards, targets, strict=True):
            # A target may be a view of a message; a shard's gradient is its own.
            self._arrived(shard, target, is_fresh=False)

    @spanned
    def scatter_gradients(self, group: int, places: Sequence[Any]) -> None:
        leaves = self._leaves_of_copies(places)
        sent = sum(self._sent(leaf) for _, leaf in leaves)
        ranks = self._in_group_of_several("scatter_gradients", group, sent)
        dtypes = [self.worker.reduce or gradient_dtype(leaf) for _, leaf in leaves]
        for dtype in dict.fromkeys(dtypes):
            of_dtype = [leaf for leaf, leaf_dtype in zip(leaves, dtypes, strict=True) if leaf_dtype == dtype]
            self._collect(1)
            self._scatterings.append(Scattering(self.comm, of_dtype, ranks, dtype))

    @spanned
    def part_gradients(self, places: Sequence[Any]) -> None:
        """Those that every rank of the group has all of."""
        for copy, leaf in self._leaves_of_copies(places):
            self._arrived(copy.at, copy.own_part(gradient_of(leaf)), is_fresh=False)

    @spanned
    def reduce_shards(self, group: int, places: Sequence[Any]) -> None:
        self._settle()
        held = self.worker.shards
        numbers = [copy.at for copy in self._copies(places)]
        grads = [held.arrived.get(at, torch.zeros_like(held.held[at].data)) for at in numbers]
        here = [
            self.worker.host.bring(x) if held.held[at].tensor.on_host else x
            for at, x in zip(numbers, grads, strict=True)
        ]
        wire = [grad.to(self.worker.reduce or grad.dtype) for grad in here]
        ranks = self._in_group("reduce_shards", group, sum(grad.nbytes for grad in wire))
        summed = collectives.all_reduce_together(self.comm, wire, ranks, "sum")
        for at, grad in zip(numbers, summed, strict=True):
            held.arrived.pop(at, None)
            self._arrived(at, grad.to(held.held[at].data.dtype), is_fresh=True)

    # Inside.

    def _sent(self, leaf: Tensor) -> int:
        """The bytes of its gradient in a message."""
        dtype = self.worker.reduce or gradient_dtype(leaf)
        return leaf.numel() * dtype.itemsize

    def _unscale(self, scale: float) -> None:
        arrived = self.worker.shards.arrived.values()
        for grad in (*(leaf.grad for leaf in self.leaves.tensors), *arrived):
            if grad is not None:
                grad.mul_(1 / scale)

    def _settle(self) -> None:
        for bucket in self._buckets:
            bucket.wait()
        self._buckets = []
        self._collect(0)

    def _collect(self, left: int) -> None:
        """Gradients that have arrived, but for so many messages: what is on its way holds memory."""
        while len(self._scatterings) > left:
            for copy, grad in self._scatterings.pop(0).wait():
                self._arrived(copy.at, grad.to(copy.shard.data.dtype), is_fresh=True)
        self._taken_by_host(left)

    def _arrived(self, shard: int, grad: Tensor, *, is_fresh: bool) -> None:
        """The gradient of a shard, in memory of its own or not; to the host if the shard is there."""
        if self.worker.shards.held[shard].tensor.on_host:
            self._handed.append((shard, *self.worker.host.hand(grad)))
            self._taken_by_host(HANDED if self.comm.device.type == "cuda" else 0)
        else:
            self.worker.shards.arrives(shard, grad if is_fresh else grad.clone())

    def _taken_by_host(self, left: int) -> None:
        """It adds up what has got there, but for so many of the last gradients."""
        while len(self._handed) > left:
            shard, grad, event = self._handed.pop(0)
            if event is not None:
                event.synchronize()
            self.worker.shards.arrives(shard, grad)
