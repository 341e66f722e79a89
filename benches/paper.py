"""nnScaler's headline table on 4 to 32 V100: its plans against its baselines, and a search against others.

The former is in `paper_baselines`. The latter has its models, sizes and global batch. The known plans are
those that it compares with: `data`, `zero3`, and `megatron` x `1f1b` x `data` in all shapes, each with and
without recomputation, whatever is quickest and fits. All are tuned in the size of a micro-batch, too, and
all times are of one cost model.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import chosen
import paper_baselines
from tables import Table, time_of

BATCH = 256
DEVICES = (4, 8, 16, 32)
# With float16's rate for bfloat16, in which models are captured.
CLUSTER = paper_baselines.FOLDER / "v100.toml"
MODELS = {
    "Swin": ("swin-1.8b", "swin-5b", "swin-10b", "swin-27b"),
    "T5": ("t5-3.9b", "t5-12b", "t5-21b", "t5-47b"),
    "AlphaFold2": ("alphafold2-87m", "alphafold2-930m", "alphafold2-2.4b", "alphafold2-3.2b"),
}
PUBLISHED = {"Swin": 3.5, "T5": 2.2, "AlphaFold2": 1.8}
# Samples of a micro-batch: a few, however many devices there are, and shares of a sample for each device.
FEW, EACH = (1, 2), (0.25, 1)
DEADLINE = 150.0
NOTES = [
    "Where no known plan fits there is no ratio to put beside the published one: at these micro-batches the"
    " activations of one layer, or of the layers of one stage, take more than 32 GB under all of them. Why"
    " the published ones fit is not known.",
    "What matters most for the ratios: a node's links are 150 GB/s a device here, twice what the "
    "paper's artefact counts. So `megatron` within a node is cheap, and the best known plan quicker. "
    "All micro-batches are of one size for both sides. Co-sharded parts (`coshard`) are evaluated as "
    "a named plan, not inside of `auto` and of found pipelines. They leave parameters whole on their "
    "devices.",
]
KNOWN = {"data", "zero3", "megatron", "stages", "1f1b", "recompute"}


def bench(quick: bool) -> list[Table]:
    return [*paper_baselines.bench(quick), _free(quick)]


def _free(quick: bool) -> Table:
    table = Table(
        "paper",
        "Models of the paper on V100",
        f"Full size on `meta`, a global batch of {BATCH}, AdamW, 16 bit. The quickest plan that was found"
        " against the quickest that fits of `data`, `zero3` and `megatron` x `1f1b` x `data` in all shapes,"
        " with and without recomputation; both over micro-batches of"
        f" {' and '.join(map(str, FEW))} samples, and {' and '.join(map(str, EACH))} samples a device, which"
        " stand behind the plans. Each search"
        f" had {DEADLINE:.0f} s. A star: one did not end in {chosen.MOST / 60:.0f} minutes, capture included,"
        " or had too little memory. Simulated; the paper's figures are speed-ups on 32 V100 over the best"
        " of its baselines.",
        ["model", "devices", "found", "step", "best known", "step", "times as fast", "published"],
    )
    cells = [
        (model, name, devices)
        for model, names in MODELS.items()
        for devices, name in zip(DEVICES, names, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        looked = list(pool.map(lambda cell: _looked(*cell[1:]), cells[4:5] if quick else cells))
    for (model, name, devices), results in zip(cells, looked, strict=False):
        rows = [row for one in results for row in one["rows"] if row["fits"]]
        known = [row for row in rows if is_known(row["plan"])]
        published = f"{PUBLISHED[model]}" if devices == 32 else ""
        best, other = (min(some, key=lambda row: row["seconds"], default=None) for some in (rows, known))
        ratio = f"{other['seconds'] / best['seconds']:.2f}" if best and other else ""
        star = "" if all(one.get("ended", True) for one in results) else " *"
        table.add(name + star, str(devices), *_told(best), *_told(other), ratio, published)
        table.values[name] = {"found": best, "known": other}
    table.notes += NOTES
    return table


def is_known(plan: str) -> bool:
    """Whether it is one of the plans that the paper compares with; `zero3` by itself."""
    sets = {axis.split(":")[0] for axis in plan.split(" x ")}
    return sets <= KNOWN and not ("zero3" in sets and sets & {"megatron", "stages"})


def _looked(name: str, devices: int) -> list[dict[str, Any]]:
    """What was found for each size of a micro-batch, which its rows say, too."""
    results = []
    for batch in sorted({*FEW, *(int(devices * each) for each in EACH)}):
        searched = chosen.looked_at(name, batch, BATCH // batch, CLUSTER, DEADLINE, devices)
        results.append({**searched, "rows": [{**row, "samples": batch} for row in searched["rows"]]})
    return results


def _told(row: dict[str, Any] | None) -> tuple[str, str]:
    return (f"`{row['plan']}`, {row['samples']}", time_of(row["seconds"])) if row else ("none fits", "")
