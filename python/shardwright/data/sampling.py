"""Which samples this rank loads, where every rank is given its own part of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import IterableDataset, Sampler

from ..errors import RuntimeFault
from ..runtime.module import ParallelModule
from ..runtime.programs.regions import Interval


class PartSampler(Sampler[list[int]]):
    """A batch sampler: `DataLoader(dataset, batch_sampler=...)`.

    It cuts the indices of the whole data set, in an order that all ranks agree on, into batches of
    `batch_size`, and gives this rank's rows of each. Its position counts whole batches, so that it
    can be resumed on another number of ranks.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        rows: Mapping[int, Interval],
        *,
        shuffle: bool,
        seed: int,
        drop_last: bool,
    ):
        """`rows` are this rank's, for each size that a batch may have."""
        self.length, self.batch_size = length, batch_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self._rows = dict(rows)
        # Batches of this epoch that have been taken, and where the next iteration begins.
        self._taken = self._start = 0

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        full, rest = divmod(self.length, self.batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        start, self._start = self._start, 0
        self._taken = start
        for at in range(start, len(self)):
            batch = order[at * self.batch_size : (at + 1) * self.batch_size]
            low, high = self._rows[len(batch)]
            self._taken = at + 1
            yield batch[low:high]

    def set_epoch(self, epoch: int) -> None:
        """Another order for each epoch, the same on all ranks. Begins at the epoch's first batch,
        unless it is the one that a loaded state is in."""
        if epoch != self.epoch:
            self.epoch, self._taken, self._start = epoch, 0, 0

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """`taken` is how many batches of this epoch the loop has trained on; by default as many as
        the loader has asked for, which is more where its workers load ahead."""
        taken = self._taken if taken is None else taken
        if not 0 <= taken <= len(self):
            raise RuntimeFault(
                "SW0788",
                f"an epoch has {len(self)} batches, not {taken}",
                why="the position counts batches of this epoch",
                fix="count from the beginning of each epoch",
            )
        return {**self._kind(), "epoch": self.epoch, "taken": taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where the state was taken, on any number of ranks."""
        other = [f"{k} was {state.get(k)}, is {v}" for k, v in self._kind().items() if state.get(k) != v]
        if other or not {"epoch", "taken"} <= state.keys():
            raise RuntimeFault(
                "SW0788",
                "the state is that of another sampler",
                why="; ".join(other) or "it has no position",
                fix="make the sampler with the data set, batch size, seed and order of the first run",
            )
        self.epoch = int(state["epoch"])
        # After the last batch comes the next epoch's first.
        self._taken = self._start = int(state["taken"]) % max(len(self), 1)

    def _kind(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
        }

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self.length))
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(self.length, generator=generator).tolist()


def sampler(
    model: ParallelModule,
    dataset: Sized,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
) -> PartSampler:
    """This rank's part of every batch, for a model with `inputs="local"`. All ranks call this.

    `batch_size` is that of the whole batch. Ranks that read the same rows get the same indices.
    """
    length = _length(dataset)
    if batch_size < 1 or length < (batch_size if drop_last else 1):
        raise RuntimeFault(
            "SW0787",
            f"there is no batch of {batch_size} in {length} samples",
            why="a sampler gives at least one batch",
            fix="choose a smaller batch, or `drop_last=False`",
        )
    if model.pieces is None:
        raise RuntimeFault(
            "SW0787",
            "the model takes whole batches",
            why='with inputs="global" every rank is given the same batch, and takes its part itself',
            fix='parallelize it with inputs="local", or give all ranks a loader of the whole data set',
        )
    rest = length % batch_size
    sizes = {size for size in (batch_size if length >= batch_size else 0, 0 if drop_last else rest) if size}
    mine = {}
    for size in sorted(sizes, reverse=True):
        rows = model.rows_of(size)
        model.pieces.announce([high - low for low, high in rows], size)
        mine[size] = rows[model.comm.rank]
    return PartSampler(length, batch_size, mine, shuffle=shuffle, seed=seed, drop_last=drop_last)


def _length(dataset: Any) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise RuntimeFault(
            "SW0787",
            f"a sampler cannot be made for {type(dataset).__name__}",
            why="samples are sharded by their index, but this data set has no index or no length",
            fix='use inputs="global" and let all ranks read the same stream, or a data set with a length',
        )
    return len(dataset)
