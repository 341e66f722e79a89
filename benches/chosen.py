"""All plans of a model with a name on a cluster: each search is a fresh process of one thread.

Run as a script, this file is such a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import compile_time

from shardwright.support.package_digest import own_digest

# What was found is kept until the build changes: a table that was interrupted goes on.
KEPT = Path(tempfile.gettempdir()) / f"shardwright-chosen-{own_digest()[:12]}"

# Seconds after which nothing is waited for, capture included.
MOST = 1200


def looked_at(
    model: str, batch: int, batches: int, cluster: str | Path, deadline: float, devices: int | None = None
) -> dict[str, Any]:
    """Of a step of so many micro-batches all plans that were looked at, those that fit before others.

    The cluster is a name or a file; of the latter the first devices are meant, or all."""
    given = [
        model,
        str(batch),
        str(batches),
        str(cluster),
        str(deadline),
        *([str(devices)] if devices else []),
    ]
    kept = KEPT / ("-".join(given).replace(":", "_").replace("/", "_") + ".json")
    if not kept.is_file():
        KEPT.mkdir(exist_ok=True)
        kept.write_text(json.dumps(_told(given)))
    return json.loads(kept.read_text())


def _told(given: list[str]) -> dict[str, Any]:
    try:
        return compile_time.child(*given, script=__file__, timeout=MOST)
    except (subprocess.TimeoutExpired, MemoryError):
        return {"seconds": MOST, "rows": [], "ended": False}


def _look(
    model: str, batch: str, batches: str, cluster: str, deadline: str, some: str | None = None
) -> dict[str, object]:
    from shardwright._core import Graph, cluster_devices, search_plan
    from shardwright.shipped.graph import example_of, graph_of
    from shardwright.shipped.table import SHIPPED

    graph = Graph(graph_of(example_of(SHIPPED[model], int(batch), None)).text)
    text = Path(cluster).read_text() if cluster.endswith(".toml") else None
    devices = int(some or cluster_devices(cluster, text))
    start = time.perf_counter()
    search = search_plan(
        graph, devices, cluster, text, batches=int(batches), every=True, deadline=float(deadline)
    )
    return {
        "seconds": time.perf_counter() - start,
        "bound": search.bound,
        "one_block": search.inside[0] if search.inside else None,
        "rows": search.rows,
        "tried": list(search.tried),
    }


if __name__ == "__main__":
    print(json.dumps(_look(*sys.argv[1:])))
