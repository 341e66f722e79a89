"""What a rank holds between steps: the memory behind its tensors."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch
from hf import Batch
from measure import peak_of, stored
from tables import Table, size_of
from torch import Tensor, nn
from two_ranks import (
    BATCH,
    LENGTH,
    WORLD,
    Side,
    data_parallel,
    emitted,
    fully_sharded,
    model_and_batch,
    redundancy_free,
    side_of,
    tensor_parallel,
)

import shardwright as sw

KINDS = ["parameters", "gradients", "optimizer", "peak in a step"]


def bench(quick: bool) -> Table:
    del quick  # it takes no time
    rows = sw.launch(measure_all, devices=WORLD, timeout=600)
    plain = rows[0][1]
    table = Table(
        "memory",
        "Memory of a rank",
        f"The model of the bench of two ranks (float32, batch {BATCH}, sequence {LENGTH}) after a step with"
        " AdamW: bytes of the storages behind a rank's tensors; and the most that is allocated in a step, all"
        " included. The larger rank's.",
        ["", *KINDS, "of plain"],
    )
    for name, sizes in rows:
        table.add(name, *map(size_of, sizes), f"{sizes[-1] / plain[-1]:.3f}")
    table.values = {name: dict(zip(KINDS, sizes, strict=True)) for name, sizes in rows}
    return table


def measure_all(rank: int) -> list[tuple[str, list[int]]]:
    torch.set_num_threads(1)
    model, batch = model_and_batch()
    sides = {
        "plain PyTorch, one device": lambda: _plain(model, batch),
        "emitted, `data` on 2": lambda: emitted(model, batch, "data"),
        "emitted, `zero1` on 2": lambda: emitted(model, batch, "zero1"),
        "emitted, `zero2` on 2": lambda: emitted(model, batch, "zero2"),
        "emitted, `zero3` on 2": lambda: emitted(model, batch, "zero3"),
        "emitted, `zero3 x recompute` on 2": lambda: emitted(model, batch, "zero3 x recompute"),
        "DistributedDataParallel on 2": lambda: data_parallel(model, batch, rank),
        "the same with ZeroRedundancyOptimizer": lambda: redundancy_free(model, batch, rank),
        "FSDP2 on 2": lambda: fully_sharded(model, batch, rank),
        "FSDP2 with checkpoint_wrapper on 2": lambda: fully_sharded(model, batch, rank, again=True),
        "emitted, `megatron` on 2": lambda: emitted(model, batch, "megatron"),
        "DTensor tensor parallelism on 2": lambda: tensor_parallel(model, batch),
    }
    rows, losses = [], []
    for name, make in sides.items():
        sizes, loss = _measured(make)
        rows.append((name, sizes))
        losses.append(loss)
    assert max(losses) - min(losses) <= 1e-4 * losses[0], losses
    return rows


def _plain(model: nn.Module, batch: Batch) -> Side:
    made = copy.deepcopy(model)
    return side_of(made, torch.optim.AdamW(made.parameters(), lr=1e-4), batch, Tensor.item)


def _measured(make: Callable[[], Side]) -> tuple[list[int], float]:
    """What is held after a step and the peak of the next, the larger of all ranks'; and the first loss."""
    sides: list[Side] = []
    held: list[int] = []
    losses: list[float] = []

    def first_step() -> None:
        side = make()
        with side.around():
            loss = side.forward()
            side.backward(loss)
        losses.append(side.loss(loss))
        side.optimizer.step()
        held.extend(_held(side))
        side.optimizer.zero_grad()
        sides.append(side)
        # What was needed to make it and is in circles would be counted by chance.
        gc.collect()

    peak = peak_of(lambda: sides[0].step(), before=first_step)
    largest = torch.tensor([*held, peak])
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    return largest.tolist(), losses[0]


def _held(side: Side) -> list[int]:
    gradients = [p.grad for p in side.parameters]
    states: list[Any] = [x for state in side.optimizer.state.values() for x in state.values()]
    kinds = [side.parameters, gradients, [x for x in states if isinstance(x, Tensor)]]
    return [stored(tensors) for tensors in kinds]
