"""What a rank holds between steps: the memory behind its tensors."""

from __future__ import annotations

import copy
from typing import Any

import torch
from measure import stored
from tables import Table, size_of
from torch import Tensor, nn
from two_ranks import BATCH, LENGTH, WORLD, Batch, Side, emitted, model_and_batch, tensor_parallel

import shardwright as sw

KINDS = ["parameters", "gradients", "optimizer"]


def bench(quick: bool) -> Table:
    del quick  # it takes no time
    rows = sw.launch(measure_all, devices=WORLD, timeout=600)
    plain = rows[0][1]
    table = Table(
        "memory",
        "Memory of a rank",
        f"The model of the bench of two ranks (float32, batch {BATCH}, sequence {LENGTH}) after a step with"
        " AdamW: bytes of the storages behind a rank's tensors, the larger rank's.",
        ["", *KINDS, "of plain"],
    )
    for name, found in rows:
        share = sum(found) / sum(plain)
        table.add(name, *map(size_of, found), f"{share:.3f}")
    table.values = {name: dict(zip(KINDS, found, strict=True)) for name, found in rows}
    return table


def measure_all(rank: int) -> list[tuple[str, list[int]]]:
    torch.set_num_threads(1)
    model, batch = model_and_batch()
    sides = {
        "plain PyTorch, one device": lambda: _plain(model, batch),
        "emitted, `data` on 2": lambda: emitted(model, batch, "data"),
        "emitted, `megatron` on 2": lambda: emitted(model, batch, "megatron"),
        "PyTorch's tensor parallelism on 2": lambda: tensor_parallel(model, batch),
    }
    rows, losses = [], []
    for name, make in sides.items():
        side = make()
        found, loss = _held(side)
        rows.append((name, found))
        losses.append(loss)
    assert max(losses) - min(losses) <= 1e-4 * losses[0], losses
    return rows


def _plain(model: nn.Module, batch: Batch) -> Side:
    made = copy.deepcopy(model)
    adamw = torch.optim.AdamW(made.parameters(), lr=1e-4)
    parameters = list(made.parameters())
    return Side(lambda: made(*batch), Tensor.backward, adamw, parameters, Tensor.item)


def _held(side: Side) -> tuple[list[int], float]:
    """After backward and the optimizer's step, the larger of all ranks'; and the loss."""
    with side.around():
        loss = side.forward()
        side.backward(loss)
    side.optimizer.step()
    gradients = [p.grad for p in side.parameters]
    states: list[Any] = [x for state in side.optimizer.state.values() for x in state.values()]
    found = [side.parameters, gradients, [x for x in states if isinstance(x, Tensor)]]
    sizes = torch.tensor([stored(tensors) for tensors in found])
    torch.distributed.all_reduce(sizes, torch.distributed.ReduceOp.MAX)
    return sizes.tolist(), side.loss(loss)
