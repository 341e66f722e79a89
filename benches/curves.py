"""How the time to choose a plan grows: with a model's layers, with devices, and with operators.

Every measurement is a fresh process, as in `search`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import compile_time
import search
from tables import Table, size_of, time_of

BATCHES = 8
# Of Llama-3-8B's width, on 64 devices, with a sequence for each of them.
LAYERS = (8, 16, 32, 64, 126)
NODES = 8
# With its own 32 layers, on so many nodes of eight.
FLEETS = (1, 2, 4, 8, 16, 32, 64, 128)


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 3
    table = Table(
        "curves",
        "Choosing a plan: how its time grows",
        "Llama-3-8B's shape, full size on `meta`, with so many layers, on nodes of eight H100, one sequence"
        f" for each device and {BATCHES} micro-batches, AdamW, one thread. From the graph's text to the plan"
        f" `auto`, without capture: seconds of a core, medians of {repeats} fresh processes. Memory is what"
        " is added to the process's peak.",
        ["layers", "operators", "devices", "time", "of an operator", "memory", "plan", "step"],
    )
    cases = [(layers, NODES) for layers in LAYERS] + [(32, nodes) for nodes in FLEETS if nodes != NODES]
    with tempfile.TemporaryDirectory() as folder:
        for layers, nodes in [(LAYERS[0], 1)] if quick else cases:
            text = Path(folder) / f"{layers}-{nodes}.txt"
            compile_time.child("capture", str(text), "llama_of", str(8 * nodes), str(layers))
            cluster = f"dgx-h100:8x{nodes}"
            runs = [search.child(text, cluster, BATCHES) for _ in range(repeats)]
            seconds, memory = (statistics.median(one[key] for one in runs) for key in ("seconds", "memory"))
            first, operators = runs[0], text.read_text().count("\nop ")
            table.add(
                str(layers), str(operators), str(8 * nodes), time_of(seconds),
                time_of(seconds / operators), size_of(memory), f"`{first['plan']}`", time_of(first["step"]),
            )  # fmt: skip
            table.values[f"{layers} layers, {8 * nodes} devices"] = {
                **first, "operators": operators, "seconds": seconds, "memory": memory,
            }  # fmt: skip
            print(f"{layers} layers on {cluster}: {time_of(seconds)}", file=sys.stderr, flush=True)
    return table
