"""What is found against the best plan with a name: eight models on four clusters, one cost model."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import chosen
from tables import Table, time_of

# The samples of a micro-batch, and the micro-batches of a step.
MODELS = {
    "gpt2-24l": (16, 8),
    "gpt2-48l": (16, 8),
    "llama-3-8b": (16, 8),
    "mixtral-8x7b": (8, 8),
    "t5-3.9b": (16, 8),
    "t5-12b": (16, 8),
    "swin-1.8b": (16, 8),
    "alphafold2-87m": (16, 8),
}
CLUSTERS = ("dgx-h100:8x2", "dgx-a100:8x2", "dgx-v100:16x1", "ethernet-25g:4x4")
DEADLINE = 100.0


def bench(quick: bool) -> Table:
    table = Table(
        "found",
        "Found against named plans",
        "Full size on `meta`, AdamW, 16 devices. The quickest plan of all against the quickest with a name,"
        f" in all shapes, as `compare --all` has them, each search for {DEADLINE:.0f} s at most.",
        [
            "model",
            "cluster",
            "samples x micro-batches",
            "found",
            "step",
            "best with a name",
            "step",
            "times as fast",
        ],
    )
    cells = [(model, cluster) for model in MODELS for cluster in CLUSTERS]
    cells = cells[:1] if quick else cells
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        looked = list(pool.map(lambda it: chosen.looked_at(it[0], *MODELS[it[0]], it[1], DEADLINE), cells))
    for (model, cluster), looked_at in zip(cells, looked, strict=True):
        rows = [row for row in looked_at["rows"] if row["fits"]]
        named = [row for row in rows if not row["plan"].startswith(("auto", "found"))]
        sizes = " x ".join(map(str, MODELS[model]))
        if not rows:
            table.add(model, cluster, sizes, "none fits", *[""] * 4)
            continue
        best, other = rows[0], named[0] if named else None
        beside = (f"`{other['plan']}`", time_of(other["seconds"])) if other else ("none fits", "")
        times = f"{other['seconds'] / best['seconds']:.2f}" if other else ""
        table.add(model, cluster, sizes, f"`{best['plan']}`", time_of(best["seconds"]), *beside, times)
        table.values[f"{model}, {cluster}"] = {"found": best, "named": other, "seconds": looked_at["seconds"]}
    return table
