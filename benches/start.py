"""Seconds from `parallelize` to the end of the first step, with and without the cache.

Every start is a fresh process, on one device. Run as a script, this file is such a process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import Table, size_of, time_of


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 5
    table = Table(
        "start",
        "Starting",
        "A GPT of about 100M parameters in float32, one rank, one thread, plan `replicate`. Medians of"
        f" {repeats} fresh processes each; Python's imports and the making of the model are not counted."
        " The first step itself is a part of the second column.",
        ["", "`parallelize`", "to the end of the first step"],
    )
    by_cache: dict[str, list[dict[str, float]]] = {"off": [], "empty": [], "filled": []}
    kept = 0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            by_cache["off"].append(_child("off"))
            by_cache["empty"].append(_child(folder))
            by_cache["filled"].append(_child(folder))
            kept = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    names = {"off": "without a cache", "empty": "the first start with one", "filled": "the second start"}
    for key, name in names.items():
        made, stepped = (
            statistics.median(one[what] for one in by_cache[key]) for what in ("made", "stepped")
        )
        table.add(name, time_of(made), time_of(stepped))
    losses = {one["loss"] for each in by_cache.values() for one in each}
    assert len(losses) == 1, f"a program from the cache gives another loss: {losses}"
    table.notes.append(f"The program takes {size_of(kept)} in the cache. All starts have the same loss.")
    table.values = dict(by_cache)
    return table


def _child(cache: str) -> dict[str, float]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SHARDWRIGHT_CACHE": cache, "SHARDWRIGHT_PROGRESS": "off"}
    done = subprocess.run(
        [sys.executable, __file__], env=env, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        raise RuntimeError(f"cache {cache}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    import torch
    from shapes import gpt_100m

    import shardwright as sw

    torch.set_num_threads(1)
    module, batch = gpt_100m(batch=1, length=128)
    start = time.perf_counter()
    model = sw.parallelize(module, batch, plan="replicate")
    made = time.perf_counter() - start
    loss = model.train_step(batch)
    stepped = time.perf_counter() - start
    assert loss is not None
    print(json.dumps({"made": made, "stepped": stepped, "loss": loss.item()}))


if __name__ == "__main__":
    main()
