"""`model.profile_step`: runs steps of a parallel model, and says where they differ from the prediction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..runtime import ParallelModule
from ..runtime.agreement.together import from_rank_0
from .recording import record
from .step_profile import StepProfile

# Steps that are looked at line by line.
BY_LINE = 2


def profile_step(
    model: ParallelModule, batches: Any, cluster: str | None, optimizer: str, steps: int
) -> StepProfile:
    """Gradients, buffers and the count of steps are afterwards as they were."""
    with _as_it_was(model):
        # The first step is slower: memory is yet to be had, and code to be compiled.
        model.train_step(batches)
        with record(optimizer=optimizer) as recorded:
            for _ in range(max(1, steps)):
                model.train_step(batches)
            recorded.by_line = True
            for _ in range(BY_LINE):
                model.train_step(batches)
    return from_rank_0(model.comm, lambda: recorded.profile(cluster))


@contextmanager
def _as_it_was(model: ParallelModule) -> Iterator[None]:
    held = [shard for shard in model.shards.held if shard.tensor.kind == "param"]
    buffers = [shard.data for shard in model.shards.held if shard.tensor.kind == "buffer"]
    gradients, values = [shard.data.grad for shard in held], [buffer.clone() for buffer in buffers]
    step = model.step
    for shard in held:
        shard.data.grad = None
    try:
        yield
    finally:
        for shard, gradient in zip(held, gradients, strict=True):
            shard.data.grad = gradient
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
        model.step = step
