"""The first batch of a loader, for which the model is compiled; the loader gives it again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from ...data.padding import Lengths, LengthsLike

# What stands for nothing in the usual arguments of a model.
NOTHING = {"attention_mask": 0, "token_type_ids": 0, "labels": -100, "completion_mask": 0}


def first_batch(loader: Any) -> Any:
    """Whatever it takes of random numbers is put back."""
    with as_before(loader):
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            return next(iter(loader))
        return loader.collate_fn([loader.dataset[at] for at in next(iter(loader.batch_sampler))])


@contextmanager
def as_before(loader: Any = None) -> Iterator[None]:
    """Random numbers go on after this as if nothing had been drawn."""
    streams = random.getstate(), np.random.get_state(), torch.get_rng_state()
    generators = [g for g in _generators(loader) if isinstance(g, torch.Generator)]
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        random.setstate(streams[0])
        np.random.set_state(streams[1])
        torch.set_rng_state(streams[2])
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _generators(loader: Any) -> list[Any]:
    batches = getattr(loader, "batch_sampler", None)
    samplers = (loader, batches, getattr(batches, "sampler", None), getattr(loader, "sampler", None))
    result = [getattr(one, "generator", None) for one in samplers]
    return list({id(one): one for one in result}.values())


def lengths_of(given: Any, batch: Mapping[str, Any], main: str, pad: int | None) -> LengthsLike | None:
    """`given` as numbers, for all arguments that are as long as the main one along their second dim."""
    if given is None or not all(isinstance(one, int) for one in given):
        return given  # type: ignore[no-any-return]
    length = batch[main].shape[1]
    same_length = [name for name, x in batch.items() if isinstance(x, torch.Tensor) and _second(x) == length]
    values = {**NOTHING, main: 0 if pad is None else pad}
    return Lengths(list(given), {name: values.get(name, 0) for name in same_length})


def _second(x: torch.Tensor) -> int | None:
    return x.shape[1] if x.dim() > 1 else None
