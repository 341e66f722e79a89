"""How long it takes to choose a plan, and what is chosen.

Every measurement is a fresh process without torch, so that its memory can be seen: of one thread, and of as
many as the machine has cores. Run as a script, this file is such a process.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import compile_time
from tables import Table, size_of, time_of

from shardwright.shipped.table import SHIPPED

# Clusters that have no name.
MIXED = {
    "a100:8 and v100:8": """
[network]
bandwidth = "100 Gbit/s"
latency = "14 us"
shared = true

[[nodes]]
devices = "a100:8"

[[nodes]]
devices = "v100:8"
""",
}
# The shape or shipped model, the sequences of a micro-batch, the micro-batches of a step, and the cluster.
CASES = [
    ("llama_3_8b", 8, 8, "dgx-h100:8x1"),
    ("llama_3_8b", 64, 8, "dgx-h100:8x8"),
    ("llama_3_8b", 512, 8, "dgx-h100:8x64"),
    ("llama_3_70b", 64, 16, "dgx-h100:8x8"),
    ("llama_3_70b", 256, 16, "dgx-h100:8x32"),
    ("llama_3_70b", 512, 16, "dgx-h100:8x64"),
    ("llama_3_405b", 512, 16, "dgx-h100:8x128"),
    ("llama_3_405b", 4096, 16, "dgx-h100:8x1024"),
    ("mixtral-8x7b", 64, 8, "dgx-h100:8x8"),
    ("deepseek-v3", 1024, 16, "dgx-h100:8x256"),
    ("gpt_24", 8, 8, "dgx-h100:8x1"),
    ("gpt_48", 8, 8, "dgx-h100:8x1"),
    ("gpt_24", 16, 8, "ethernet-25g:4x4"),
    ("gpt_48", 16, 8, "ethernet-25g:4x4"),
    ("gpt_24", 16, 8, "a100:8 and v100:8"),
    ("llama_3_8b", 16, 8, "a100:8 and v100:8"),
    ("t5-47b", 4, 64, "dgx-v100:16x2"),
    ("swin-27b", 2, 128, "dgx-v100:16x2"),
    ("alphafold2-3.2b", 2, 128, "dgx-v100:16x2"),
]
# Seconds for a search; what was found by then counts.
DEADLINE = 300.0
# What takes longer than this is measured once.
ONCE = 60.0


def bench(quick: bool) -> Table:
    repeats, cores = 1 if quick else 3, os.cpu_count() or 1
    table = Table(
        "search",
        "Choosing a plan",
        "Full size on `meta`, the sequences of `benches/shapes.py`, AdamW. From the graph's text to the plan"
        f" `auto`, without capture. With one thread it is seconds of a core, with {cores} seconds of the"
        f" clock: medians of {repeats} fresh processes (one where it takes over {ONCE:.0f} s), each search"
        f" for {DEADLINE:.0f} s at most. All else is of one thread. Memory is what is added to the process's"
        " peak. The last but one column is the step beside what no plan can beat.",
        [
            "model", "cluster", "micro-batches", "one thread", f"{cores} threads", "memory", "plan", "step",
            "of the bound", "lowered",
        ],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for shape, batch, batches, cluster in CASES[:1] if quick else CASES:
            text = Path(folder) / f"{shape}-{batch}.txt"
            if not text.is_file():
                _capture(text, shape, batch)
            runs = _runs(text, cluster, batches, 1, repeats)
            parallel = _runs(text, cluster, batches, cores, repeats)
            first = runs[0]
            seconds, memory = (statistics.median(one[key] for one in runs) for key in ("seconds", "memory"))
            clock = statistics.median(one["clock"] for one in parallel)
            table.add(
                f"{shape}, {batch} sequences", cluster, str(batches), time_of(seconds), time_of(clock),
                size_of(memory), f"`{first['plan']}`", time_of(first["step"]),
                f"{first['step'] / first['bound']:.2f}", str(first["lowered"]),
            )  # fmt: skip
            table.values[f"{shape}, {cluster}"] = {
                **first, "seconds": seconds, "memory": memory, "threads": cores, "clock": clock,
            }  # fmt: skip
            told = f"{time_of(seconds)}, with {cores} threads {time_of(clock)}"
            print(f"{shape} on {cluster}: {told}", file=sys.stderr, flush=True)
    return table


def _runs(text: Path, cluster: str, batches: int, threads: int, repeats: int) -> list[dict[str, Any]]:
    runs = [child(text, cluster, batches, threads)]
    while runs[0]["clock"] <= ONCE and len(runs) < repeats:
        runs.append(child(text, cluster, batches, threads))
    return runs


def _capture(text: Path, shape: str, batch: int) -> None:
    if shape in SHIPPED:
        compile_time.child("shipped", str(text), shape, str(batch), script=__file__, timeout=1200)
    else:
        compile_time.child("capture", str(text), shape, str(batch))


def _shipped(path: str, model: str, batch: str) -> dict[str, int]:
    from shardwright.shipped.graph import example_of, graph_of

    text = graph_of(example_of(SHIPPED[model], int(batch), None)).text
    return {"text": Path(path).write_text(text)}


def child(text: Path, cluster: str, batches: int, threads: int = 1) -> dict[str, Any]:
    given = (str(text), cluster, str(batches), str(threads))
    return compile_time.child(*given, script=__file__, timeout=3600)


def _search(path: str, cluster: str, batches: str, threads: str) -> dict[str, object]:
    core = compile_time.extension()
    text, described = Path(path).read_text(), MIXED.get(cluster)
    before = compile_time.rss_of("VmRSS")
    # Of one thread the seconds of a core, so that others on the machine do not count.
    start, clock = time.process_time(), time.perf_counter()
    graph = core.Graph(text)
    devices = core.cluster_devices(cluster, described)
    searched = core.search_plan(
        graph, devices, cluster, described, batches=int(batches), deadline=DEADLINE, threads=int(threads)
    )
    seconds, clock = time.process_time() - start, time.perf_counter() - clock
    first = searched.rows[0]
    return {
        "seconds": seconds,
        "clock": clock,
        "memory": compile_time.rss_of("VmHWM") - before,
        "plan": first["plan"],
        "step": first["seconds"],
        "bound": searched.bound,
        "lowered": len(searched.rows),
    }


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(_shipped(*given[1:]) if given[0] == "shipped" else _search(*given)))
