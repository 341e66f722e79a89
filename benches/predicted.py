"""What a step is said to take on the devices here, in time and in memory, beside what it takes."""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import shapes
import torch
from measure import peak_of, seconds, wait_until_quiet
from shapes import Example
from tables import Table, size_of, time_of
from torch import Tensor, nn

import shardwright as sw
from shardwright._core import Graph, Plan, compile, simulate_step
from shardwright.capture import capture
from shardwright.profiling.clock import low
from shardwright.profiling.measuring import profile
from shardwright.runtime.communication.launch import threads_of

Pair = tuple[str, str, int]

# By the number of ranks; a plan, and micro-batches of its step.
PLANS = {
    2: [
        ("data:2", 1),
        ("data:2", 4),
        ("zero1:2", 1),
        ("zero3:2", 1),
        ("megatron:2", 1),
        ("data:2 x recompute", 1),
        ("stages:2 x 1f1b", 4),
        ("stages:2 x gpipe x recompute", 2),
    ],
    4: [
        ("data:4", 1),
        ("megatron:4", 1),
        ("zero3:4", 1),
        ("data:2 x megatron:2", 1),
        ("data:4 x recompute", 1),
        ("stages:2 x data:2 x 1f1b", 4),
    ],
}
# What others may have of the cores before a pair is measured, and for how long that is waited for.
QUIET, PATIENCE = 0.2, 4.0
AIM = "Spearman at least 0.9, median error at most 20%; memory within 10%"


def small() -> Example:
    return _gpt(4, 256, 1024, 2048, 4, 64)


def wide() -> Example:
    return _gpt(2, 768, 2048, 4096, 2, 64)


def many_words() -> Example:
    return _gpt(2, 256, 512, 16384, 4, 64)


def wider() -> Example:
    """With as many rows as there are ranks."""
    return _gpt(2, 768, 2048, 4096, 4, 64)


MODELS = {"small": small, "wide": wide, "wide, 4 rows": wider, "many words": many_words}
NAMES = {2: ["small", "wide", "many words"], 4: ["small", "wide, 4 rows", "many words"]}


def _gpt(layers: int, width: int, inner: int, words: int, batch: int, length: int) -> Example:
    torch.manual_seed(0)
    model = shapes.Gpt(layers, width, 8, 8, inner, words, length)
    generator = torch.Generator().manual_seed(1)
    tokens, targets = (torch.randint(words, (batch, length), generator=generator) for _ in range(2))
    return model, (tokens, targets)


@dataclass(frozen=True)
class Figures:
    """Of a step: seconds, and bytes of the rank that needs most."""

    seconds: float
    memory: int
    # What others made of the cores right before it was measured.
    others: float = 0.0


def bench(quick: bool) -> Table:
    return table_of(2, quick)


def table_of(world: int, quick: bool) -> Table:
    before = wait_until_quiet(60)
    text = profile(world)
    pairs: list[Pair] = [(name, *plan) for name in NAMES[world] for plan in PLANS[world]]
    pairs = pairs[:3] if quick else pairs
    measured = sw.launch(_measured, world, (pairs, 4 if quick else 10), timeout=1800)
    table = Table(
        "predicted" if world == 2 else f"predicted-{world}",
        f"Predicted and measured steps of {world} ranks",
        f"Models for {world} processes on Gloo, {threads_of(world)} thread each, {os.cpu_count()} cores,"
        " float32, AdamW. Predicted by `shardwright simulate` with what `shardwright profile` measured right"
        " before, on other models; times are lower quartiles, of a step with the optimizer's. Memory is that"
        f" of the rank that needs most. Aim: {AIM}. Others had {before:.0%} of the cores before the profile,"
        f" and {statistics.mean(it.others for it in measured):.0%} before a pair on the mean: what they do"
        " adds to what is measured.",
        ["model", "plan", "micro-batches", "predicted", "measured", "of measured", "told", "peak", "of peak"],
    )
    predicted = [_predicted(pair, text, world) for pair in pairs]
    for pair, estimate, actual in zip(pairs, predicted, measured, strict=True):
        _add(table, pair, estimate, actual)
    table.notes += _notes(predicted, measured)
    return table


def _add(table: Table, pair: Pair, estimate: Figures, actual: Figures) -> None:
    name, plan, batches = pair
    times = time_of(estimate.seconds), time_of(actual.seconds), f"{estimate.seconds / actual.seconds:.2f}"
    sizes = size_of(estimate.memory), size_of(actual.memory), f"{estimate.memory / actual.memory:.2f}"
    table.add(name, f"`{plan}`", str(batches), *times, *sizes)
    table.values[f"{name}, {plan}, {batches}"] = {
        "predicted": estimate.seconds,
        "measured": actual.seconds,
        "told": estimate.memory,
        "peak": actual.memory,
    }


def _notes(predicted: Sequence[Figures], measured: Sequence[Figures]) -> list[str]:
    def errors(figure: Callable[[Figures], float]) -> list[float]:
        return [abs(figure(a) / figure(b) - 1) for a, b in zip(predicted, measured, strict=True)]

    times, memory = errors(lambda it: it.seconds), errors(lambda it: it.memory)
    alike = spearman([it.seconds for it in predicted], [it.seconds for it in measured])
    quiet = [error for error, it in zip(times, measured, strict=True) if it.others <= QUIET]
    alone = f" ({statistics.median(quiet):.1%} of the {len(quiet)} pairs" if quiet else " (there are no pairs"
    return [
        f"Spearman {alike:.3f}, median error {statistics.median(times):.1%}{alone} before which others had at"
        f" most {QUIET:.0%} of the cores), at most {max(times):.1%}. Memory: median error"
        f" {statistics.median(memory):.1%}, at most {max(memory):.1%}."
    ]


def _predicted(pair: Pair, cluster: str, world: int) -> Figures:
    name, plan, batches = pair
    module, given = MODELS[name]()
    made = Plan.named(Graph(capture(module, given).graph_text), plan, world)
    simulated = simulate_step(made, compile(made), "here", cluster, batches=batches)
    return Figures(simulated.seconds, max(needed for needed, _ in simulated.memory))


def _measured(rank: int, pairs: Sequence[Pair], repeats: int) -> list[Figures]:
    return [_one(*pair, repeats) for pair in pairs]


def _one(name: str, plan: str, batches: int, repeats: int) -> Figures:
    """Both, the larger of all ranks'."""
    module, given = MODELS[name]()
    steps: list[Callable[[], None]] = []

    def make() -> None:
        steps.append(step_of(module, given, plan, batches))
        steps[0]()
        # What was needed to make it and is in circles would be counted by chance.
        gc.collect()

    peak = peak_of(lambda: steps[0](), before=make)
    others = wait_until_quiet(PATIENCE, QUIET)
    torch.distributed.barrier()
    times = [seconds(steps[0]) for _ in range(repeats)]
    largest = torch.tensor([low(times), float(peak), others], dtype=torch.float64)
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    return Figures(float(largest[0]), int(largest[1]), float(largest[2]))


def step_of(
    module: nn.Module, given: tuple[Tensor, ...], plan: str | Path, batches: int
) -> Callable[[], None]:
    """A step of so many micro-batches, with the optimizer's."""
    model = sw.parallelize(module, given, plan=plan, cache=False, progress=False)
    optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-4)

    def step() -> None:
        model.train_step([given] * batches)
        optimizer.step()
        optimizer.zero_grad()

    return step


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of ranks; no two values are equal."""
    place = [{value: at for at, value in enumerate(sorted(values))} for values in (a, b)]
    n = len(a)
    apart = sum((place[0][x] - place[1][y]) ** 2 for x, y in zip(a, b, strict=True))
    return 1 - 6 * apart / (n * (n * n - 1))
