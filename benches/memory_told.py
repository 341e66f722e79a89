"""What the compiler says a step needs in memory, beside what lives in one."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tables import Table, size_of

from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "python"))

import live
from test_memory import MODELS, PAIRS


def bench(quick: bool) -> Table:
    torch.set_num_threads(1)
    table = Table(
        "memory-told",
        "Memory told before it is used",
        "A step with AdamW, of the rank that needs most: what the compiler counts in the program, and the"
        " most that lives while it runs, without inputs.",
        ["model", "plan", "told", "measured", "told of measured"],
    )
    for name, plan, devices in PAIRS[:4] if quick else PAIRS:
        predicted, measured = both(name, plan, devices)
        table.add(
            name,
            f"`{plan}` on {devices}",
            size_of(predicted),
            size_of(measured),
            f"{predicted / measured:.3f}",
        )
        table.values[f"{name}, {plan}"] = {"told": predicted, "measured": measured}
    return table


def both(name: str, plan: str, devices: int) -> tuple[int, int]:
    module, args, kwargs = MODELS[name]()
    captured = capture(module, args, kwargs)
    compiled = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    predicted = [rank.total - rank.peak["inputs"] for rank in compiled.memory()]
    return max(predicted), max(live.of_steps(compiled, module, captured, kwargs or args))
