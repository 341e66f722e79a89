"""Plans that others have proved, compiled and proved here: how long it takes, on one thread."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from compile_time import child
from tables import Table, size_of, time_of

# A shape, a plan and its devices, micro-batches, and the seconds of TrainVerify on 32 cores and more.
PLANS = [
    ("Llama-3-8B", "llama_3_8b", "data:512", 512, 1, 685),
    ("Llama-3-70B", "llama_3_70b", "stages:4 x data:16 x megatron:8", 512, 32, 8_532),
    ("Llama-3-405B", "llama_3_405b", "stages:16 x data:64 x megatron:8", 8_192, 16, 28_786),
    ("DeepSeek-V3-16B", "deepseek_16b", "stages:2 x data:16 x megatron:4", 128, 16, 1_351),
    ("DeepSeek-V3-236B", "deepseek_236b", "stages:4 x data:16 x megatron:8", 512, 16, 8_484),
    ("DeepSeek-V3-671B", "deepseek_671b", "stages:8 x data:32 x megatron:8", 2_048, 16, 32_371),
]
BATCH = 512


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 3
    table = Table(
        "proved",
        "Proving plans of others",
        "The plans of TrainVerify's table (SOSP'25; 32 cores and more, up to 1 TB of memory), on one thread:"
        " reading the graph, planning, lowering, the proof and writing the program, of the model in full size"
        f" on `meta`, batch {BATCH}. Medians of {repeats} fresh processes. The proof is of any number"
        " of micro-batches.",
        ["model", "plan", "devices", "seconds of TrainVerify", "in all", "of that the proof", "memory"],
    )
    for model, shape, plan, devices, batches, theirs in PLANS:
        with tempfile.TemporaryDirectory() as folder:
            text = str(Path(folder) / "graph.txt")
            child("capture", text, shape, str(BATCH))
            each = [child("compile", text, plan, str(devices)) for _ in range(repeats)]
        medians = {key: statistics.median(one[key] for one in each) for key in each[0]}
        table.add(
            model,
            f"`{plan}`, {batches} micro-batches",
            f"{devices:,}",
            f"{theirs:,}",
            time_of(medians["all"]),
            time_of(medians["check"]),
            size_of(medians["memory"]),
        )
        table.values[model] = {**medians, "theirs": theirs}
    return table
