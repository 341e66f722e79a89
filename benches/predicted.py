"""What a step is said to take on the devices here, beside what it takes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import shapes
import torch
from measure import pin
from shapes import Example
from tables import Table, time_of

import shardwright as sw
from shardwright._core import Graph, Plan, compile, simulate_step
from shardwright.capture import capture
from shardwright.profiling.measuring import profile, threads_of

WORLD = 2
PLANS = [
    ("data:2", 1),
    ("data:2", 4),
    ("zero1:2", 1),
    ("zero3:2", 1),
    ("megatron:2", 1),
    ("data:2 x recompute", 1),
    ("stages:2 x 1f1b", 4),
    ("stages:2 x gpipe x recompute", 2),
]
AIM = "Spearman at least 0.9, median error at most 20%"


def small() -> Example:
    return _gpt(4, 256, 1024, 2048, 4, 64)


def wide() -> Example:
    return _gpt(2, 768, 2048, 4096, 2, 64)


def many_words() -> Example:
    return _gpt(2, 256, 512, 16384, 4, 64)


MODELS = {"small": small, "wide": wide, "many words": many_words}


def _gpt(layers: int, width: int, inner: int, words: int, batch: int, length: int) -> Example:
    torch.manual_seed(0)
    model = shapes.Gpt(layers, width, 8, 8, inner, words, length)
    generator = torch.Generator().manual_seed(1)
    tokens, targets = (torch.randint(words, (batch, length), generator=generator) for _ in range(2))
    return model, (tokens, targets)


def bench(quick: bool) -> Table:
    text = profile(WORLD)
    pairs = [(name, *plan) for name in MODELS for plan in PLANS]
    pairs = pairs[:3] if quick else pairs
    measured = sw.launch(_measured, WORLD, (pairs, 3 if quick else 15), timeout=1800)
    table = Table(
        "predicted",
        "Predicted and measured steps",
        f"Models for {WORLD} processes on Gloo, one thread each, float32, AdamW; measured are medians."
        " Predicted by `shardwright simulate` with what `shardwright profile` measured before, in one run."
        f" The aim is {AIM}.",
        ["model", "plan", "micro-batches", "predicted", "measured", "predicted of measured"],
    )
    predicted = [_predicted(name, plan, batches, text) for name, plan, batches in pairs]
    for (name, plan, batches), told, found in zip(pairs, predicted, measured, strict=True):
        cells = time_of(told), time_of(found), f"{told / found:.2f}"
        table.add(name, f"`{plan}`", str(batches), *cells)
        table.values[f"{name}, {plan}, {batches}"] = {"predicted": told, "measured": found}
    errors = [abs(a / b - 1) for a, b in zip(predicted, measured, strict=True)]
    table.notes.append(
        f"Spearman {spearman(predicted, measured):.3f}, median error {statistics.median(errors):.1%}."
    )
    table.notes.append("```toml\n" + text + "```")
    return table


def _predicted(name: str, plan: str, batches: int, cluster: str) -> float:
    module, given = MODELS[name]()
    made = Plan.named(Graph(capture(module, given).graph_text), plan, WORLD)
    return simulate_step(made, compile(made), "here", cluster, batches=batches).seconds


def _measured(rank: int, pairs: Sequence[tuple[str, str, int]], repeats: int) -> list[float]:
    """Medians of each pair."""
    pin(rank)
    torch.set_num_threads(1)
    found = []
    for name, plan, batches in pairs:
        module, given = MODELS[name]()
        with tempfile.TemporaryDirectory() as folder:
            options = {"cache": False, "progress": False, "save_to": Path(folder, "program")}
            model = sw.parallelize(module, given, plan=plan, **options)
        optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-4)
        times = []
        for _ in range(repeats + 2):
            start = time.perf_counter()
            model.train_step([given] * batches)
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - start)
        found.append(statistics.median(times[2:]))
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of ranks; no two values are equal."""
    place = [{value: at for at, value in enumerate(sorted(values))} for values in (a, b)]
    n = len(a)
    apart = sum((place[0][x] - place[1][y]) ** 2 for x, y in zip(a, b, strict=True))
    return 1 - 6 * apart / (n * (n * n - 1))
