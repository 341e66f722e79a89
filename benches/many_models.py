"""What becomes of models of Transformers: capture, compilation, what is split, what is communicated.

The models have their usual sizes and are on `meta`: nothing is computed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hf import BATCH, MODELS
from tables import Table, size_of, time_of

from shardwright import Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import capture

PLANS = [("data", 4), ("megatron", 4)]


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 3
    table = Table(
        "models",
        "Models of Transformers",
        f"Usual sizes on `meta`, batch {BATCH}, with labels; plans on 4 devices, medians of {repeats}."
        " Compiling is everything after capture. Split are operators whose parts differ, alike those that"
        " every device repeats. Communication is what one rank issues in a step: how many times, and the"
        " bytes that it hands over.",
        ["", "operators", "capture", "plan", "compiling", "split", "alike", "communication", "bytes"],
    )
    for name, make in MODELS.items():
        with torch.device("meta"):
            module, batch = make()
        seconds, captured = median(repeats, partial(capture, module, (), batch))
        for plan, devices in PLANS:
            measurement = measured(captured.graph_text, plan, devices, repeats)
            table.values[f"{name}, {plan}:{devices}"] = {"capture": seconds, **measurement}
            first = [name, str(measurement["operators"]), time_of(seconds)]
            table.add(*(first if plan == PLANS[0][0] else [""] * 3), f"`{plan}`", *cells(measurement))
    return table


def measured(text: str, plan: str, devices: int, repeats: int) -> dict[str, Any]:
    seconds, (operators, compiled) = median(repeats, partial(planned, text, plan, devices))
    split, alike, _ = compiled.divided
    return {
        "operators": operators,
        "compiling": seconds,
        "split": split,
        "alike": alike,
        "without_rule": list(compiled.unknown),
        "counts": dict(compiled.counts[0]),
        "bytes": dict(compiled.bytes[0]),
    }


def planned(text: str, plan: str, devices: int) -> tuple[int, Compiled]:
    graph = Graph(text)
    return len(graph.operators), compile(Plan.named(graph, plan, devices))


def cells(measurement: dict[str, Any]) -> list[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in by_kind(measurement["counts"]).items())
    size = size_of(sum(measurement["bytes"].values()))
    return [
        time_of(measurement["compiling"]),
        str(measurement["split"]),
        str(measurement["alike"]),
        counts,
        size,
    ]


def by_kind(counts: dict[str, int]) -> dict[str, int]:
    """Forward and backward together."""
    kinds: dict[str, int] = {}
    for kind, count in counts.items():
        name = kind.split()[1]
        kinds[name] = kinds.get(name, 0) + count
    return kinds


def median(repeats: int, run: Callable[[], Any]) -> tuple[float, Any]:
    times, result = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return statistics.median(times), result
