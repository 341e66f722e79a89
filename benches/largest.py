"""The deepest model that trains in so much memory a rank, under each way of dividing it."""

from __future__ import annotations

import functools
import gc
import math
import statistics

import torch
import torch.distributed as dist
from measure import peak_of, seconds
from shapes import Gpt
from tables import Table, size_of, time_of
from torch import Tensor, nn

import shardwright as sw
from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture

WORLD = 4
LIMIT = 512 * 2**20
WIDTH, INNER, WORDS = 512, 1408, 2048
BATCH, LENGTH = 4, 96
PLANS = ["data", "zero1", "zero2", "zero3", "zero3 x recompute"]

Example = tuple[nn.Module, tuple[Tensor, Tensor]]


def bench(quick: bool) -> Table:
    table = Table(
        "largest",
        "The largest model in so much memory",
        f"A GPT of Llama's shape (width {WIDTH}, float32, batch {BATCH}, sequence {LENGTH}, AdamW) with as"
        f" many layers as train on {WORLD} ranks of {LIMIT >> 20} MiB each. The compiler's own numbers say"
        " how many; then they run. Measured is the most that is allocated in a step, all included, on"
        " the rank where that is most; what measures more does not count, but one with fewer layers."
        f" {WORLD} processes share the machine's cores: times say how plans compare, no more.",
        ["", "layers", "parameters", "told", "measured", "step"],
    )
    for plan in PLANS:
        layers, found = trained(plan, 1 if quick else 2)
        memory = told(plan, layers)
        sizes = f"{found['size'] / 1e6:.1f}M", size_of(memory), size_of(found["peak"])
        table.add(f"`{plan}`", str(layers), *sizes, time_of(found["step"]))
        table.values[plan] = {"layers": layers, "told": memory, **found}
    return table


def trained(plan: str, steps: int) -> tuple[int, dict[str, float]]:
    """The most layers that fit, and how they run."""
    layers = most_layers(plan)
    while True:
        found = sw.launch(measured, devices=WORLD, args=(plan, layers, steps), timeout=600)
        if found["peak"] <= LIMIT:
            return layers, found
        layers -= math.ceil((found["peak"] - LIMIT) / (found["peak"] / layers))


def most_layers(plan: str) -> int:
    """So many are told to fit, and one more is not."""
    few, more = told(plan, 4), told(plan, 8)
    layers = 4 + int((LIMIT - few) / (more - few) * 4)
    while told(plan, layers) > LIMIT:
        layers -= 1
    while told(plan, layers + 1) <= LIMIT:
        layers += 1
    return layers


@functools.cache
def told(plan: str, layers: int) -> int:
    """Of the rank that needs most."""
    graph = Graph(graph_of(layers))
    return max(rank.total for rank in compile(Plan.named(graph, plan, WORLD)).memory("adamw"))


@functools.cache
def graph_of(layers: int) -> str:
    with torch.device("meta"):
        module, args = example(layers)
    return capture(module, args, verify=False).graph_text


def example(layers: int) -> Example:
    torch.manual_seed(0)
    words = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    return Gpt(layers, WIDTH, 8, 8, INNER, WORDS, LENGTH), (words, words)


def measured(rank: int, plan: str, layers: int, steps: int) -> dict[str, float]:
    """Runs in each of the processes: a step's peak and time, of the rank where it is most."""
    torch.set_num_threads(1)
    made: list[tuple[sw.ParallelModule, torch.optim.Optimizer]] = []
    sizes: list[int] = []
    batch = torch.randint(WORDS, (2, BATCH, LENGTH), generator=torch.Generator().manual_seed(0)).unbind()

    def step() -> float:
        [(model, optimizer)] = made
        loss = model.train_step(batch)
        optimizer.step()
        optimizer.zero_grad()
        assert loss is not None
        return loss.item()

    def first_step() -> None:
        module, args = example(layers)
        sizes.append(sum(p.numel() for p in module.parameters()))
        model = sw.parallelize(module, args, plan=plan)
        made.append((model, sw.optimizer(model, torch.optim.AdamW, lr=1e-4)))
        del module
        step()
        gc.collect()

    peak = peak_of(step, before=first_step)
    times = []
    for _ in range(steps):
        dist.barrier()
        times.append(seconds(step))
    most = torch.tensor([float(peak), statistics.median(times)], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return {"peak": int(most[0]), "step": float(most[1]), "size": sizes[0]}
