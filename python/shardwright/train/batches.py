"""The batches of a run, in an order that follows from the seed: the same on any number of ranks, and after a
restart in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset, default_collate

from ..data.sampling import PartSampler
from ..errors import RuntimeFault
from .config import DataConfig
from .importing import load


class Batches:
    """All ranks are given whole batches, of which each takes its part."""

    def __init__(self, dataset: Any, config: DataConfig, seed: int, folder: Path):
        self._dataset, self._config, self._seed = dataset, config, seed
        self._collate = default_collate if config.collate is None else load(config.collate, folder)
        self.epoch = self.taken = 0
        self._order: PartSampler | None = None
        if not isinstance(dataset, IterableDataset):
            self._order = self._sampler(len(dataset))

    def __len__(self) -> int:
        """Batches of an epoch."""
        if self._order is None:
            raise RuntimeFault(
                "SW0854",
                "the end of an epoch is asked for, and the data is a stream",
                why="a stream does not say how long it is",
                fix="give `steps` in place of `epochs`",
            )
        return len(self._order)

    def first(self) -> Any:
        """A batch, without taking it."""
        return next(iter(self._loader()))

    def __iter__(self) -> Iterator[Any]:
        """For ever, from where the run is."""
        while True:
            begun = self.taken
            yield from self._rest_of_epoch()
            if self.taken == begun == 0:
                raise RuntimeFault(
                    "SW0854",
                    "there is no batch in the data",
                    why=f"a batch is {self._config.batch} samples, and the data has fewer",
                    fix="give a smaller `batch`, or `drop_last: false`",
                )
            self.epoch, self.taken = self.epoch + 1, 0

    def once(self, most: int | None = None) -> Iterator[Any]:
        """The first batches of the data, in its own order."""
        for at, batch in enumerate(self._loader()):
            if most is not None and at >= most:
                return
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "taken": self.taken, "batch": self._config.batch, "seed": self._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        now = self.state_dict()
        other = [
            f"`{name}` was {state[name]}, is {now[name]}"
            for name in ("batch", "seed")
            if state[name] != now[name]
        ]
        if other:
            raise RuntimeFault(
                "SW0854",
                "the run cannot go on where it was in its data",
                why="; ".join(other),
                fix="give the numbers of the run that is resumed, or begin another: `resume: never`",
            )
        self.epoch, self.taken = state["epoch"], state["taken"]

    def _rest_of_epoch(self) -> Iterator[Any]:
        if self._order is not None:
            self._order.load_state_dict(
                {**self._order.state_dict(0), "epoch": self.epoch, "taken": self.taken}
            )
        loader = iter(self._loader())
        for _ in range(self.taken if self._order is None else 0):
            next(loader, None)
        for batch in loader:
            self.taken += 1
            yield batch

    def _loader(self) -> DataLoader[Any]:
        more: dict[str, Any] = {"collate_fn": self._collate, "num_workers": self._config.workers}
        if self._order is not None:
            return DataLoader(self._dataset, batch_sampler=self._order, **more)
        return DataLoader(
            self._dataset, batch_size=self._config.batch, drop_last=self._config.drop_last, **more
        )

    def _sampler(self, length: int) -> PartSampler:
        config = self._config
        whole = {size: (0, size) for size in (config.batch, length % config.batch) if size}
        return PartSampler(
            length,
            config.batch,
            whole,
            shuffle=config.shuffle,
            seed=self._seed,
            drop_last=config.drop_last,
        )


def tokens_of(batch: Any) -> int:
    """Elements of its first tensor of whole numbers that has rows and columns; else samples."""
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()]
    for tensor in tensors:
        if tensor.dim() == 2 and tensor.dtype in (torch.int64, torch.int32):
            return tensor.numel()
    return tensors[0].shape[0] if tensors else 0
