"""Two ranks: plan `data` against DistributedDataParallel, `megatron` against PyTorch's tensor parallelism.

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
from measure import assert_close, interleaved, pin, ratio, stored
from shapes import Gpt
from tables import Table, ratio_of, time_of
from torch import Tensor, nn

import shardwright as sw

LAYERS, WIDTH, HEADS, INNER, WORDS, LENGTH, BATCH = 6, 384, 6, 1024, 8192, 128, 4
WORLD = 2
AIM = 1.0
Batch = tuple[Tensor, Tensor]
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
        f"A GPT of {results[0]['size'] / 1e6:.0f}M parameters, float32, batch {BATCH}, sequence {LENGTH}."
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
        ("megatron", "PyTorch's tensor parallelism", lambda: tensor_parallel(model, batch)),
    ]
    return pinned, [compare(plan, other, model, batch, make(), pairs, rank) for plan, other, make in rivals]


def model_and_batch() -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    model = Gpt(LAYERS, WIDTH, HEADS, HEADS, INNER, WORDS, LENGTH)
    words = torch.randint(0, WORDS, (BATCH, LENGTH + 1))
    return model, (words[:, :-1].contiguous(), words[:, 1:].contiguous())


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
    made = sw.parallelize(copy.deepcopy(model), batch, plan=plan)
    adamw = sw.optimizer(made, torch.optim.AdamW, lr=1e-4)
    parameters = list(made.parameters())
    return Side(lambda: made(*batch), Tensor.backward, adamw, parameters, Tensor.item)


def data_parallel(model: nn.Module, batch: Batch, rank: int) -> Side:
    made = nn.parallel.DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True)
    adamw = torch.optim.AdamW(made.parameters(), lr=1e-4)
    own = tuple(x.chunk(WORLD)[rank].contiguous() for x in batch)

    def mean(loss: Tensor) -> float:
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        return loss.item() / WORLD

    return Side(lambda: made(*own), Tensor.backward, adamw, list(made.parameters()), mean)


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
    for block in made.h:
        column = {name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
        row = {name: RowwiseParallel() for name in ("o", "down")}
        parallelize_module(block, mesh, {**column, **row})
        block.attend = _local_heads(block)
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(made, mesh, {"lm_head": head})
    adamw = torch.optim.AdamW(made.parameters(), lr=1e-4)
    parameters = list(made.parameters())

    def whole(loss: Tensor) -> Tensor:
        return loss.full_tensor() if hasattr(loss, "full_tensor") else loss

    return Side(
        lambda: made(*batch),
        Tensor.backward,
        adamw,
        parameters,
        lambda loss: whole(loss).item(),
        loss_parallel,
    )


def _local_heads(block: Any) -> Callable[[Tensor], Tensor]:
    """Attention over this rank's heads: the output has not the width of the input."""

    def attend(x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            each(x).view(batch, length, -1, width // block.heads).transpose(1, 2)
            for each in (block.q, block.k, block.v)
        )
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return block.o(y.transpose(1, 2).reshape(batch, length, -1))

    return attend


def _interleaved(ours: Side, theirs: Side, pairs: int) -> tuple[list[list[float]], list[list[float]]]:
    """Whole steps and their parts, the slowest rank's, of both sides."""
    parts: tuple[list[list[float]], list[list[float]]] = ([], [])

    def timed(side: Side, found: list[list[float]]) -> float:
        dist.barrier()
        _, taken = side.step()
        found.append([sum(taken), *taken])
        return 0.0

    interleaved(lambda: timed(ours, parts[0]), lambda: timed(theirs, parts[1]), pairs)
    return _slowest(parts[0]), _slowest(parts[1])


def _slowest(found: Sequence[Sequence[float]]) -> list[list[float]]:
    times = torch.tensor(found, dtype=torch.float64)
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
    kinds = dict.fromkeys(kind for found in clocks for kind in found)
    return {kind: statistics.median(found.get(kind, 0.0) for found in clocks) for kind in kinds}
