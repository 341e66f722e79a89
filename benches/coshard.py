"""What a training step of a Swin takes, in memory and time, with its large operators in parts in turn."""

from __future__ import annotations

import copy
import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch
from hf import Batch
from measure import peak_of, pin, seconds
from tables import Table, size_of, time_of
from torch import nn

import shardwright as sw
from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture

WORLD, BATCH = 2, 4
PLANS = ["data", "data x recompute", "data x coshard", "data x coshard x recompute"]
Step = Callable[[], Any]


def bench(quick: bool) -> Table:
    results = sw.launch(measure_all, devices=WORLD, args=(1 if quick else 3,), timeout=600)
    plain, slowest = results[0]["measured"], statistics.median(results[0]["times"])
    table = Table(
        "coshard",
        "Large activations in turn",
        f"The first two stages of a Swin tiny of Transformers, float32, images of 224x224, batch {BATCH},"
        " on two ranks, one thread each. The columns are the most that a rank has in a step with SGD, as the"
        " compiler tells it and as torch's allocator says, and the time of a step. Times are medians, taken"
        " in turn. Sent are the bytes that a rank hands over in a step.",
        ["", "told", "measured", "of `data`", "step", "of `data`", "sent"],
    )
    for row in results:
        middle = statistics.median(row["times"])
        memory = size_of(row["told"]), size_of(row["measured"]), f"{row['measured'] / plain:.3f}"
        table.add(
            f"`{row['plan']}`", *memory, time_of(middle), f"{middle / slowest:.2f}x", size_of(row["sent"])
        )
    table.values = {row["plan"]: row for row in results}
    return table


def measure_all(rank: int, repeats: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    pin(rank)
    model, batch = swin()
    graph = Graph(capture(model, (), batch).graph_text)
    results = [of_plan(plan, graph, model, batch) for plan in PLANS]
    for at in range(repeats):
        for row in results if at % 2 == 0 else reversed(results):
            row["times"].append(seconds(row["step"]))
        gc.collect()
    losses = [row["losses"][0] for row in results]
    assert max(losses) - min(losses) <= 1e-4 * losses[0], losses
    for row in results:
        largest = torch.tensor([row["measured"], *map(int, (1e9 * time for time in row["times"]))])
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        row["measured"], *times = largest.tolist()
        row["times"] = [time / 1e9 for time in times]
        del row["step"], row["losses"]
    return results


def of_plan(plan: str, graph: Graph, model: nn.Module, batch: Batch) -> dict[str, Any]:
    compiled = compile(Plan.named(graph, plan, WORLD))
    sides: list[Step] = []
    losses: list[float] = []

    def first_step() -> None:
        made = sw.parallelize(copy.deepcopy(model), (), batch, plan=plan, progress=False, cache=False)
        optimizer = sw.optimizer(made, torch.optim.SGD, lr=1e-3)

        def step() -> None:
            losses.append(made.train_step(batch).item())
            optimizer.step()
            optimizer.zero_grad()

        step()
        sides.append(step)
        gc.collect()

    measured = peak_of(lambda: sides[0](), before=first_step)
    return {
        "plan": plan,
        "told": max(memory.total - memory.peak["inputs"] for memory in compiled.memory("sgd")),
        "measured": measured,
        "sent": sum(compiled.bytes[0].values()),
        "step": sides[0],
        "times": [],
        "losses": losses,
    }


def swin() -> tuple[nn.Module, Batch]:
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    module = SwinForImageClassification(SwinConfig(depths=[2, 2], num_heads=[3, 6], drop_path_rate=0.0))
    images = torch.randn(BATCH, 3, 224, 224)
    return module.train(), {"pixel_values": images, "labels": torch.randint(2, (BATCH,))}
