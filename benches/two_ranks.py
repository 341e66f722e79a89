"""Two ranks: plan `data` and the `zero`s against DDP and FSDP2, `megatron` against DTensor.

Both sides live in the same two processes and take turns. Everything a side needs is in its `Side`.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from breakdown import Clock, instrumented
from hf import Batch, sized_llama
from measure import assert_close, interleaved, pin, ratio, stored
from tables import Table, ratio_of, time_of
from torch import Tensor, nn

import shardwright as sw

LENGTH, BATCH = 128, 4
WORLD = 2
AIM = 1.0
PARTS = ["forward", "backward", "optimizer"]


@dataclass
class Side:
    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], None]
    optimizer: torch.optim.Optimizer
    parameters: list[Tensor]
    loss: Callable[[Tensor], float]
    """The loss over the whole batch. Not timed: DDP would not communicate it."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def step(self) -> tuple[Tensor, list[float]]:
        """One step and the seconds of its parts."""
        clock = [time.perf_counter()]
        with self.around():
            loss = self.forward()
            clock.append(time.perf_counter())
            self.backward(loss)
            clock.append(time.perf_counter())
        self.optimizer.step()
        self.optimizer.zero_grad()
        clock.append(time.perf_counter())
        return loss, [b - a for a, b in pairwise(clock)]


def bench(quick: bool) -> Table:
    pairs = 8 if quick else 60
    pinned, results = sw.launch(measure_all, devices=WORLD, args=(pairs,), timeout=1200)
    table = Table(
        "two-ranks",
        "Two ranks",
        f"A Llama of Transformers with {results[0]['size'] / 1e6:.0f}M parameters, float32, batch {BATCH},"
        f" sequence {LENGTH}."
        f" Two processes on Gloo, one thread each, {'each pinned to its core' if pinned else 'NOT pinned'};"
        f" {pairs} interleaved pairs of steps; a step takes as long as on the slower rank. The aim is at most"
        f" {AIM}x.",
        ["", "part", "emitted", "PyTorch's own", "ratio [95%]"],
    )
    for result in results:
        for at, part in enumerate(["step", *PARTS]):
            ours, theirs = ([times[at] for times in result[side]] for side in ("ours", "theirs"))
            medians = time_of(statistics.median(ours)), time_of(statistics.median(theirs))
            name = f"`{result['plan']}` against {result['other']}" if not at else ""
            table.add(name, part, *medians, ratio_of(ratio(ours, theirs)))
    for result in results:
        parts = ", ".join(f"{name} {time_of(taken)}" for name, taken in result["parts"].items())
        rival = ", ".join(f"{name} {time_of(taken)}" for name, taken in result["rival"].items())
        table.notes.append(f"Where a step of `{result['plan']}` goes (rank 0): {parts}.")
        table.notes.append(f"Where a step of {result['other']} goes: {rival}.")
    worst = max(result["worst"] for result in results)
    table.notes.append(
        f"Largest relative difference of the losses: {worst:.1e}. Ours reduces the loss over the ranks in"
        " each step, DDP does not."
    )
    table.values = {"results": results, "pinned": pinned}
    return table


def measure_all(rank: int, pairs: int) -> tuple[bool, list[dict[str, Any]]]:
    """Runs in each of the two processes."""
    torch.set_num_threads(1)
    pinned = pin(rank)
    model, batch = model_and_batch()
    rivals = [
        ("data", "DistributedDataParallel", lambda: data_parallel(model, batch, rank)),
        ("zero3", "FSDP2", lambda: fully_sharded(model, batch, rank)),
        (
            "zero3 x recompute",
            "FSDP2 with checkpoint_wrapper",
            lambda: fully_sharded(model, batch, rank, again=True),
        ),
        ("zero1", "DDP and ZeroRedundancyOptimizer", lambda: redundancy_free(model, batch, rank)),
        ("megatron", "DTensor tensor parallelism", lambda: tensor_parallel(model, batch)),
    ]
    return pinned, [compare(plan, other, model, batch, make(), pairs, rank) for plan, other, make in rivals]


def model_and_batch() -> tuple[nn.Module, Batch]:
    return sized_llama(6, 384, 6, 1024, 8192, BATCH, LENGTH)


def compare(
    plan: str, other: str, model: nn.Module, batch: Batch, theirs: Side, pairs: int, rank: int
) -> dict[str, Any]:
    ours = emitted(model, batch, plan)
    pin(rank)  # also the threads that have come since
    both = [[side.loss(side.step()[0]) for _ in range(3)] for side in (ours, theirs)]
    worst = assert_close(plan, *both, 1e-4)
    a, b = _interleaved(ours, theirs, pairs)
    both = [[side.loss(side.step()[0])] for side in (ours, theirs)]
    worst = max(worst, assert_close(f"{plan}, at the end", *both, 1e-2))
    steps = min(pairs, 10)
    parts, rival = _where(ours, steps), _where(theirs, steps)
    return {
        "plan": plan,
        "other": other,
        "size": sum(p.numel() for p in model.parameters()),
        "ours": a,
        "theirs": b,
        "worst": worst,
        "parts": parts,
        "rival": rival,
        "bytes": (stored(ours.parameters), stored(theirs.parameters)),
    }


def emitted(model: nn.Module, batch: Batch, plan: str) -> Side:
    """The program, called as the user's loop calls a model."""
    made = sw.parallelize(copy.deepcopy(model), (), batch, plan=plan)
    adamw = sw.optimizer(made, torch.optim.AdamW, lr=1e-4)
    return side_of(made, adamw, batch, Tensor.item)


def data_parallel(model: nn.Module, batch: Batch, rank: int) -> Side:
    made = nn.parallel.DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True)
    return side_of(made, _adamw(made), _own(batch, rank), _mean)


def redundancy_free(model: nn.Module, batch: Batch, rank: int) -> Side:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    made = nn.parallel.DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True)
    adamw = ZeroRedundancyOptimizer(made.parameters(), torch.optim.AdamW, lr=1e-4)
    return side_of(made, adamw, _own(batch, rank), _mean)


def fully_sharded(model: nn.Module, batch: Batch, rank: int, *, again: bool = False) -> Side:
    """Each layer by itself, and what is left, as its documentation has it; with layers computed `again`."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    made = copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (WORLD,))
    if again:
        made.model.layers = nn.ModuleList(map(checkpoint_wrapper, made.model.layers))
    for layer in made.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    return side_of(made, _adamw(made), _own(batch, rank), _mean)


def tensor_parallel(model: nn.Module, batch: Batch) -> Side:
    """The same splits as `megatron`: the blocks, the projection to words and the loss; embeddings whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    made = copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (WORLD,))
    column = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    splits = {name: ColwiseParallel() for name in column}
    splits |= {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    for layer in made.model.layers:
        parallelize_module(layer, mesh, splits)
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(made, mesh, {"lm_head": head})

    def whole(loss: Tensor) -> float:
        return (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item()

    return side_of(made, _adamw(made), batch, whole, loss_parallel)


def side_of(
    made: nn.Module,
    adamw: torch.optim.Optimizer,
    batch: Batch,
    loss: Callable[[Tensor], float],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Side:
    return Side(lambda: made(**batch).loss, Tensor.backward, adamw, list(made.parameters()), loss, around)


def _adamw(made: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(made.parameters(), lr=1e-4)


def _own(batch: Batch, rank: int) -> Batch:
    return {name: x.chunk(WORLD)[rank].contiguous() for name, x in batch.items()}


def _mean(loss: Tensor) -> float:
    """Of the ranks' losses, which count the same number of words each."""
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss.item() / WORLD


def _interleaved(ours: Side, theirs: Side, pairs: int) -> tuple[list[list[float]], list[list[float]]]:
    """Whole steps and their parts, the slowest rank's, of both sides."""
    parts: tuple[list[list[float]], list[list[float]]] = ([], [])

    def timed(side: Side, times: list[list[float]]) -> float:
        dist.barrier()
        _, taken = side.step()
        times.append([sum(taken), *taken])
        return 0.0

    interleaved(lambda: timed(ours, parts[0]), lambda: timed(theirs, parts[1]), pairs)
    return _slowest(parts[0]), _slowest(parts[1])


def _slowest(measured: Sequence[Sequence[float]]) -> list[list[float]]:
    times = torch.tensor(measured, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def _where(side: Side, steps: int) -> dict[str, float]:
    """Seconds of a step by kind of work, medians over a few more steps."""
    clocks = []
    for _ in range(steps):
        dist.barrier()
        clock = Clock()
        with instrumented(clock):
            _, taken = side.step()
        clocks.append(clock.shares(dict(zip(PARTS, taken, strict=True))))
    kinds = dict.fromkeys(kind for clock in clocks for kind in clock)
    return {kind: statistics.median(clock.get(kind, 0.0) for clock in clocks) for kind in kinds}
