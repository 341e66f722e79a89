"""Sharded parameters that come for the calls that read them, and go again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...shards.copies import Copy
from ..gathers import Gathering
from ..offload import Away
from ..profiles import spanned
from .messages import Messages


class Gathered(Messages):
    @spanned
    def gather(self, group: int, places: Sequence[Any]) -> None:
        """Each place is a leaf or holds some. They are there at the first call that reads them."""
        copies = self._copies(places)
        sent = sum(copy.shard.data.numel() * copy.dtype.itemsize for copy in copies)
        ranks = self._in_group_of_several("gather", group, sent)
        with torch.no_grad():
            for dtype in dict.fromkeys(copy.dtype for copy in copies):
                of_dtype = [copy for copy in copies if copy.dtype == dtype]
                self.worker.coming.append(Gathering(self.comm, of_dtype, ranks, self.worker.host))

    @spanned
    def release(self, places: Sequence[Any]) -> None:
        for copy in self._copies(places):
            self._arrive(frozenset(map(id, copy.leaves)))
            copy.release()

    # Inside.

    def _copies(self, places: Sequence[Any]) -> list[Copy]:
        """In their order at each place."""
        return list({id(copy): copy for copy, _ in self._leaves_of_copies(places)}.values())

    def _leaves_of_copies(self, places: Sequence[Any]) -> list[tuple[Copy, Tensor]]:
        table, copies = self.worker.table.leaves, self.worker.shards.copies
        numbers = [at for place in places for at in self.leaves.at(place)]
        pairs = ((table[at].copy, self.leaves.tensors[at]) for at in numbers)
        return [(copies[copy], leaf) for copy, leaf in pairs if copy is not None]

    def _await(self, args: Sequence[Any]) -> frozenset[int]:
        """What is gathered of what a call reads, once it is there."""
        if not self.leaves.come_and_go:
            return frozenset()
        read = frozenset().union(*map(self.leaves.below, args))
        self._arrive(read)
        return read

    def _arrive(self, leaves: frozenset[int]) -> None:
        coming = self.worker.coming
        for gathering in [one for one in coming if one.leaves & leaves]:
            with torch.no_grad():
                gathering.wait()
            coming.remove(gathering)

    def _own(self, results: Any, read: frozenset[int]) -> Any:
        """Results that are views of what is gathered would go with it."""
        if not read:
            return results
        pointers = self._gathered(read)

        def copied(x: Any) -> Any:
            views = isinstance(x, Tensor) and not x.is_sparse and x.untyped_storage().data_ptr() in pointers
            return x.detach().clone().requires_grad_(x.requires_grad) if views else x

        return tuple(map(copied, results)) if isinstance(results, tuple) else copied(results)

    def _gathered(self, read: frozenset[int]) -> frozenset[int]:
        """The memory of what is gathered of some leaves."""
        table, copies = self.worker.table.leaves, self.worker.shards.copies
        numbers = {table[self.leaves.index[leaf]].copy for leaf in read}
        # What is not there has none, nor has what is empty.
        return frozenset(copies[copy].pointer for copy in numbers if copy is not None) - {0}

    def _away(self, read: frozenset[int]) -> Away:
        if self._stays is None:
            # What is gathered goes, and its memory is then somebody else's.
            leaves = zip(self.worker.table.leaves, self.leaves.tensors, strict=True)
            held = (*(leaf for it, leaf in leaves if it.copy is None), *self._inputs)
            self._stays = frozenset(x.untyped_storage().data_ptr() for x in held)
        return Away(self.worker.host, self._stays | self._gathered(read))
