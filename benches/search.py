"""How long it takes to choose a plan, and what is chosen.

Every measurement is a fresh process of one thread, without torch, so that its memory can be seen. Run as a
script, this file is such a process.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import compile_time
from tables import Table, size_of, time_of

from shardwright.shipped.table import SHIPPED

# The shape or shipped model, the sequences of a micro-batch, the micro-batches of a step, and the cluster.
CASES = [
    ("llama_3_8b", 8, 8, "dgx-h100:8x1"),
    ("llama_3_8b", 64, 8, "dgx-h100:8x8"),
    ("llama_3_8b", 512, 8, "dgx-h100:8x64"),
    ("llama_3_70b", 64, 16, "dgx-h100:8x8"),
    ("llama_3_70b", 512, 16, "dgx-h100:8x64"),
    ("llama_3_405b", 512, 16, "dgx-h100:8x128"),
    ("llama_3_405b", 4096, 16, "dgx-h100:8x1024"),
    ("gpt_24", 8, 8, "dgx-h100:8x1"),
    ("gpt_48", 8, 8, "dgx-h100:8x1"),
    ("t5-47b", 4, 64, "dgx-v100:16x2"),
    ("swin-27b", 2, 128, "dgx-v100:16x2"),
    ("alphafold2-3.2b", 2, 128, "dgx-v100:16x2"),
]
# Seconds for a search; what was found by then counts.
DEADLINE = 300.0
# What takes longer than this is measured once.
ONCE = 60.0


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 3
    table = Table(
        "search",
        "Choosing a plan",
        "Full size on `meta`, the sequences of `benches/shapes.py`, AdamW, one thread. From the graph's text"
        f" to the plan `auto`, without capture: seconds of a core, medians of {repeats} fresh processes"
        f" (one where it takes over {ONCE:.0f} s), each search for {DEADLINE:.0f} s at most. Memory is what"
        " is added to the process's peak. The last but one column is the step beside what no plan can beat.",
        ["model", "cluster", "micro-batches", "time", "memory", "plan", "step", "of the bound", "lowered"],
    )
    with tempfile.TemporaryDirectory() as folder:
        for shape, batch, batches, cluster in CASES[:1] if quick else CASES:
            text = Path(folder) / f"{shape}-{batch}.txt"
            if not text.is_file():
                _capture(text, shape, batch)
            runs = [child(text, cluster, batches)]
            while runs[0]["seconds"] <= ONCE and len(runs) < repeats:
                runs.append(child(text, cluster, batches))
            first = runs[0]
            seconds = statistics.median(one["seconds"] for one in runs)
            memory = statistics.median(one["memory"] for one in runs)
            table.add(
                f"{shape}, {batch} sequences", cluster, str(batches), time_of(seconds), size_of(memory),
                f"`{first['plan']}`", time_of(first["step"]), f"{first['step'] / first['bound']:.2f}",
                str(first["lowered"]),
            )  # fmt: skip
            table.values[f"{shape}, {cluster}"] = {**first, "seconds": seconds, "memory": memory}
            print(f"{shape} on {cluster}: {time_of(seconds)}", file=sys.stderr, flush=True)
    return table


def _capture(text: Path, shape: str, batch: int) -> None:
    if shape in SHIPPED:
        compile_time.child("shipped", str(text), shape, str(batch), script=__file__, timeout=1200)
    else:
        compile_time.child("capture", str(text), shape, str(batch))


def _shipped(path: str, model: str, batch: str) -> dict[str, int]:
    from shardwright.shipped.graph import example_of, graph_of

    text = graph_of(example_of(SHIPPED[model], int(batch), None)).text
    return {"text": Path(path).write_text(text)}


def child(text: Path, cluster: str, batches: int) -> dict[str, Any]:
    return compile_time.child(str(text), cluster, str(batches), script=__file__, timeout=3600)


def _search(path: str, cluster: str, batches: str) -> dict[str, object]:
    core = compile_time.extension()
    text = Path(path).read_text()
    before = compile_time.rss_of("VmRSS")
    # Of one thread, so that others on the machine do not count.
    start = time.process_time()
    graph = core.Graph(text)
    devices = core.cluster_devices(cluster)
    searched = core.search_plan(graph, devices, cluster, batches=int(batches), deadline=DEADLINE, threads=1)
    seconds = time.process_time() - start
    first = searched.rows[0]
    return {
        "seconds": seconds,
        "memory": compile_time.rss_of("VmHWM") - before,
        "plan": first["plan"],
        "step": first["seconds"],
        "bound": searched.bound,
        "lowered": len(searched.rows),
    }


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(_shipped(*given[1:]) if given[0] == "shipped" else _search(*given)))
