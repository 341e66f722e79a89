"""The deepest model that trains in so much memory a rank, under each way of dividing it."""

from __future__ import annotations

import functools
import gc
import math
import statistics

import numpy
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
LIMIT = 128 * 2**20
WIDTH, INNER, WORDS = 384, 1056, 2048
BATCH, LENGTH = 4, 96
# More are not tried.
MOST = 20
# Beside what is told Gloo copies messages: the parameters of a layer, and the gradients of two.
GLOO = 3 * 4 * (4 * WIDTH * WIDTH + 3 * WIDTH * INNER)
PLANS = [
    "data",
    "zero1",
    "zero3",
    "zero3 x offload:activations",
    "zero3 x offload:state",
    "data x recompute x offload",
    "zero3 x recompute x offload",
]

Example = tuple[nn.Module, tuple[Tensor, Tensor]]


def bench(quick: bool) -> Table:
    table = Table(
        "largest",
        "The largest model in so much memory",
        f"A GPT of Llama's shape (width {WIDTH}, float32, batch {BATCH}, sequence {LENGTH}, AdamW) with as"
        f" many layers as train on {WORLD} ranks of {LIMIT >> 20} MiB each. The compiler's own numbers say"
        f" how many, {MOST} at most; then they run. Measured is the most that is allocated in a step, all"
        " included, on the rank where that is most; what measures more does not count, but one with fewer"
        " layers. What plans keep on the host is neither told nor measured with it, and is a column of its"
        " own, as told."
        f" {WORLD} processes share the machine's cores: times say how plans compare, no more.",
        ["", "layers", "parameters", "told", "measured", "on the host", "step"],
    )
    for plan in PLANS:
        layers, measurement = trained(plan, 1)
        memory, away = predicted(plan, layers)
        sizes = (
            f"{measurement['size'] / 1e6:.1f}M",
            size_of(memory),
            size_of(measurement["peak"]),
            size_of(away),
        )
        table.add(f"`{plan}`", str(layers), *sizes, time_of(measurement["step"]))
        table.values[plan] = {"layers": layers, "told": memory, "on_host": away, **measurement}
    return table


def trained(plan: str, steps: int) -> tuple[int, dict[str, float]]:
    """The most layers that fit, and how they run."""
    layers = most_layers(plan)
    while True:
        measurement = sw.launch(measured, devices=WORLD, args=(plan, layers, steps), timeout=600)
        if measurement["peak"] <= LIMIT:
            return layers, measurement
        layers -= math.ceil((measurement["peak"] - LIMIT) / (measurement["peak"] / layers))


def most_layers(plan: str) -> int:
    """So many are told to fit, looked for along a line through what the last two needed."""
    bound = LIMIT - (GLOO if "zero" in plan else 0)
    before, layers = 4, 6
    for _ in range(3):
        here = predicted(plan, layers)[0]
        each = max((here - predicted(plan, before)[0]) / (layers - before), 1)
        guess = min(max(layers + int((bound - here) / each), 1), MOST)
        if guess == layers:
            break
        before, layers = layers, guess
    while predicted(plan, layers)[0] > bound:
        layers -= 1
    return layers


@functools.cache
def predicted(plan: str, layers: int) -> tuple[int, int]:
    """Of the rank that needs most, and of its host."""
    graph = Graph(graph_of(layers))
    ranks = compile(Plan.named(graph, plan, WORLD)).memory("adamw")
    most = max(ranks, key=lambda rank: rank.total)
    return most.total, most.offloaded


@functools.cache
def graph_of(layers: int) -> str:
    with torch.device("meta"):
        module, args = example(layers)
    return capture(module, args, verify=False).graph_text


def example(layers: int) -> Example:
    torch.manual_seed(0)
    words = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    return Gpt(layers, WIDTH, 8, 8, INNER, WORDS, LENGTH), (words, words)


def keep_host_apart(model: sw.ParallelModule) -> None:
    """What is on the host is here not of torch's allocator, whose log is what is measured."""
    model.worker.host.empty = room  # type: ignore[method-assign]
    for shard in model.shards.held:
        if shard.tensor.on_host:
            shard.data.data = apart(shard.data)


def keep_state_apart(model: sw.ParallelModule, optimizer: torch.optim.Optimizer) -> None:
    """Of parameters that are stepped on the host."""
    for data in (shard.data for shard in model.shards.held if shard.tensor.on_host):
        state = optimizer.state[data]
        state.update({key: apart(x) for key, x in state.items() if x.dim()})


def room(size: int) -> Tensor:
    return torch.from_numpy(numpy.empty(size, dtype=numpy.uint8))


def apart(x: Tensor) -> Tensor:
    return room(x.nbytes).view(x.dtype).view(x.shape).copy_(x.detach())


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
        keep_host_apart(model)
        made.append((model, sw.optimizer(model, torch.optim.AdamW, lr=1e-4)))
        del module
        step()
        keep_state_apart(*made[0])
        gc.collect()

    peak = peak_of(step, before=first_step)
    times = []
    for _ in range(steps):
        dist.barrier()
        times.append(seconds(step))
    most = torch.tensor([float(peak), statistics.median(times)], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return {"peak": int(most[0]), "step": float(most[1]), "size": sizes[0]}
