"""A batch to compile for, and loaders that give the same batches in every process."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.seed import pl_worker_init_function
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _DatasetKind

from ...errors import RuntimeFault


def first_batch(trainer: Any, kind: str) -> Any:
    """What a step of this kind is given first."""
    loaders = getattr(trainer, f"{kind}_loop")._data_source.dataloader()
    if isinstance(loaders, CombinedLoader):
        loaders = loaders.iterables
    if kind == "fit":
        return _tree(loaders)
    while isinstance(loaders, (list, tuple, dict)):  # evaluation takes one loader after another
        loaders = next(iter(loaders.values() if isinstance(loaders, dict) else loaders))
    return _first(loaders)


def _tree(loaders: Any) -> Any:
    if isinstance(loaders, dict):
        return {name: _tree(loader) for name, loader in loaders.items()}
    if isinstance(loaders, (list, tuple)):
        return type(loaders)(map(_tree, loaders))
    return _first(loaders)


def _first(loader: Any) -> Any:
    """Without the loader's workers, where that is possible."""
    mapped = isinstance(loader, DataLoader) and loader._dataset_kind == _DatasetKind.Map
    with _kept(_generators(loader)):
        if mapped and loader.batch_sampler is not None:
            chosen = next(iter(loader.batch_sampler), None)
            if chosen is None:
                raise _no_batch("the loader is empty")
            several = getattr(loader.dataset, "__getitems__", None)
            rows = several(chosen) if callable(several) else [loader.dataset[at] for at in chosen]
            return loader.collate_fn(rows)
        iterator = iter(loader)
        if iterator is loader or iterator is getattr(loader, "dataset", None):
            raise _no_batch("a loader that is an iterator has each batch once, and would lose its first")
        batch = next(iterator, _NOTHING)
        if batch is _NOTHING:
            raise _no_batch("the loader is empty")
        return batch


_NOTHING = object()


def _no_batch(why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0873",
        "the loader gives no batch to compile for",
        why=why,
        fix="give one: `ShardwrightStrategy(example=batch)`, as the step is given it",
    )


def _generators(loader: Any) -> list[torch.Generator]:
    sampler = getattr(loader, "sampler", None)
    held = (getattr(owner, "generator", None) for owner in (loader, sampler))
    return [one for one in held if isinstance(one, torch.Generator)]


@contextmanager
def _kept(generators: list[torch.Generator]) -> Iterator[None]:
    states = [one.get_state() for one in generators]
    try:
        yield
    finally:
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)


@contextmanager
def random_kept() -> Iterator[None]:
    """What is drawn meanwhile is drawn again: the loop draws as it does on one device."""
    states = random_states()
    try:
        yield
    finally:
        set_random_states(states)


def random_states() -> dict[str, Any]:
    """Of the generators that loaders draw from."""
    numpy = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state() if numpy else None,
    }


def set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if states["numpy"] is not None and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(states["numpy"])


def with_whole_batches(loader: Any) -> Any:
    """A loader whose batches are the whole ones, on all ranks."""
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    inner = [getattr(sampler, "sampler", None) for sampler in samplers]
    distributed = next((one for one in [*samplers, *inner] if isinstance(one, DistributedSampler)), None)
    if distributed is not None and distributed.num_replicas > 1:
        raise RuntimeFault(
            "SW0874",
            "a loader has a `DistributedSampler`",
            why="each process would be given other rows, and here each is given the whole batch",
            fix="leave it out: `batch_size` is that of the whole batch, and the plan shards it",
        )
    seeded = bool(int(os.environ.get("PL_SEED_WORKERS", "0")))  # Lightning would seed them by rank
    if seeded and isinstance(loader, DataLoader) and loader.worker_init_fn is None:
        loader.worker_init_fn = partial(pl_worker_init_function, rank=0)
    return loader
