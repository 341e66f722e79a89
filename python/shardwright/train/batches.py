"""The batches of a run, in an order that follows from the seed: the same on any number of ranks, and after a
restart in the middle of an epoch.

A stream has its own order. Where `torchdata` is installed, its loader asks the stream for its place, and puts
it there; else what was taken is read once more and left out.
"""

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
        # Of a stream: a loader that keeps its place, and whether it was put where the run is.
        self._stream: Any = None
        self._is_placed = False
        if isinstance(dataset, IterableDataset):
            stateful = _stateful_loader()
            self._stream = None if stateful is None else self._loader(stateful)
        else:
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
        if self._stream is None:
            return next(iter(self._loader()))
        before = self._stream.state_dict()
        batch = next(iter(self._stream))
        self._stream.load_state_dict(before)
        return batch

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

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"epoch": self.epoch, "taken": self.taken, **self._kind()}
        if self._stream is not None:
            state["stream"] = {"workers": self._config.workers, "place": self._stream.state_dict()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        other = [
            f"`{name}` was {state[name]}, is {now}"
            for name, now in self._kind().items()
            if state[name] != now
        ]
        if other:
            raise RuntimeFault(
                "SW0854",
                "the run cannot go on where it was in its data",
                why="; ".join(other),
                fix="give the numbers of the run that is resumed, or begin another: `resume: never`",
            )
        self.epoch, self.taken = state["epoch"], state["taken"]
        stream = state.get("stream")
        # A place is one for each worker: with more or fewer of them the stream is read once more.
        if stream is not None and self._stream is not None and stream["workers"] == self._config.workers:
            self._stream.load_state_dict(stream["place"])
            self._is_placed = True

    def _kind(self) -> dict[str, int]:
        return {"batch": self._config.batch, "seed": self._seed}

    def _rest_of_epoch(self) -> Iterator[Any]:
        if self._order is not None:
            self._order.load_state_dict(
                {**self._order.state_dict(0), "epoch": self.epoch, "taken": self.taken}
            )
        loader = iter(self._loader() if self._stream is None else self._stream)
        if self._order is None and not self._is_placed:
            for _ in range(self.taken):
                next(loader, None)
        self._is_placed = False
        for batch in loader:
            self.taken += 1
            yield batch

    def _loader(self, kind: Any = DataLoader) -> Any:
        more: dict[str, Any] = {"collate_fn": self._collate, "num_workers": self._config.workers}
        if self._order is not None:
            return kind(self._dataset, batch_sampler=self._order, **more)
        return kind(self._dataset, batch_size=self._config.batch, drop_last=self._config.drop_last, **more)

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


def _stateful_loader() -> Any:
    """Of `torchdata`, if that is installed."""
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return None
    return StatefulDataLoader


def tokens_of(batch: Any) -> int:
    """Elements of its first tensor of whole numbers that has rows and columns; else samples."""
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()]
    for tensor in tensors:
        if tensor.dim() == 2 and tensor.dtype in (torch.int64, torch.int32):
            return tensor.numel()
    return tensors[0].shape[0] if tensors else 0
