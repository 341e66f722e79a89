"""Two versions of what a rank trains, where steps follow each other without a pause.

Leaves share the memory of their shards. What is under way at the end of a step goes on with the leaves that
it began with, so these keep that memory, and the parameters get other memory, where optimizers write. There
are two of each, which change their places with each step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .shards import Shards, is_view


class Versions:
    def __init__(self, shards: Shards):
        self._shards = shards
        # By shard: the memory that its parameter has not.
        self._others: dict[int, Tensor] = {}
        # Whether parameters are where they were at first.
        self._at_home = True

    def keep(self) -> None:
        """Leaves stay as they are, whatever is written to parameters from now on."""
        with torch.no_grad():
            for at in self._read_where_they_are():
                data = self._shards.held[at].data
                before = data.data
                other = self._others.get(at)
                other = torch.empty_like(before) if other is None else other
                data.data = other.copy_(before)
                self._others[at] = before
        self._at_home = not self._at_home

    def give_up(self) -> None:
        """Nothing is under way: parameters have their first memory, which others may know."""
        with torch.no_grad():
            for at, other in self._others.items() if not self._at_home else ():
                data = self._shards.held[at].data
                data.data = other.copy_(data.data)
        self._others, self._at_home = {}, True

    def _read_where_they_are(self) -> list[int]:
        """The shards of which a leaf is a view, and not a cast or a copy."""
        shards = self._shards
        leaves = zip(shards.table.leaves, shards.leaves(shards.step).tensors, strict=True)
        numbers = {
            it.shard: None
            for it, leaf in leaves
            if shards.held[it.shard].tensor.trainable and is_view(leaf, shards.held[it.shard].data)
        }
        return list(numbers)
