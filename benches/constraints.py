"""What constraints save of the search, and what they cost: states and time with and without each set.

Every measurement is a fresh process of one thread, without torch. Run as a script, this file is such a
process. States are the choices of all decisions inside of a block, and the sums of them that were looked at;
plans are those that were lowered. What a set loses is by how much the step of the best plan that respects it
is longer.
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
from tables import Table, time_of

# The shape, the sequences of a micro-batch, the micro-batches of a step, and the cluster.
CASES = [
    ("gpt_24", 8, 8, "dgx-h100:8x1"),
    ("llama_3_8b", 16, 8, "dgx-h100:8x2"),
    ("llama_3_8b", 64, 8, "dgx-h100:8x8"),
]
COLUMNS = ["model", "constraints", "decisions", "choices", "sums", "inside", "times as fast"]
COLUMNS += ["lowered", "all", "times as fast", "plan", "step", "loses"]
FREE = "none"
SETS = {
    FREE: [],
    "only the batch": ['pin "*": split batch'],
    "no sequence": ['forbid "*": split sequence'],
    "layers alike": ['tie "*"'],
    "layers alike, no sequence": ['tie "*"', 'forbid "*": split sequence'],
    "inner dims of MLPs": [f'pin "*.{name}": split inner' for name in ("gate", "up", "down")],
    "one block": ["limit stages 1"],
    "one block, no recompute": ["limit stages 1", "forbid recompute"],
    "`data` between nodes, `megatron` inside": ['use "data" between nodes', 'use "megatron" inside nodes'],
}


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 3
    table = Table(
        "constraints",
        "What constraints save of the search, and cost",
        "Full size on `meta`, AdamW, one thread. The plan `auto` under each set of constraints, from the"
        f" graph's text: medians of {repeats} fresh processes. Inside is the search operator by operator,"
        " which has the decisions, choices and sums. The last column is by how much the step of the best plan"
        " is longer than without constraints.",
        COLUMNS,
    )
    with tempfile.TemporaryDirectory() as folder:
        for shape, batch, batches, cluster in CASES[:1] if quick else CASES:
            text = Path(folder) / f"{shape}-{batch}.txt"
            if not text.is_file():
                compile_time.child("capture", str(text), shape, str(batch))
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SETS}
            # Sets take turns, so that a slow minute of the machine hits all of them.
            for _ in range(repeats):
                for name, lines in SETS.items():
                    runs[name].append(_child(text, cluster, batches, lines))
            medians = {name: _median(all_of) for name, all_of in runs.items()}
            for name in SETS:
                _row(table, f"{shape}, {batch} sequences, {cluster}", name, medians[name], medians[FREE])
    return table


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    times = {key: statistics.median(one[key] for one in runs) for key in ("seconds", "inside")}
    return runs[0] | times


def _row(table: Table, model: str, name: str, median: dict[str, Any], free: dict[str, Any]) -> None:
    def times(what: str) -> str:
        return f"{free[what] / median[what]:.2f}"

    table.add(
        model, name, str(median["decisions"]), f"{median['choices']:,}", f"{median['sums']:,.0f}",
        time_of(median["inside"]), times("inside"), str(median["lowered"]), time_of(median["seconds"]),
        times("seconds"), f"`{median['plan']}`", time_of(median["step"]),
        f"{round(median['step'] / free['step'] - 1, 4) + 0.0:.1%}",
    )  # fmt: skip
    table.values[f"{model}, {name}"] = median


def _child(text: Path, cluster: str, batches: int, lines: list[str]) -> dict[str, Any]:
    given = json.dumps(lines)
    return compile_time.child(str(text), cluster, str(batches), given, script=__file__)


def _search(path: str, cluster: str, batches: str, lines: str) -> dict[str, object]:
    core = compile_time.extension()
    text = Path(path).read_text()
    given = json.loads(lines)
    said = ("the set", "\n".join(["shardwright-constraints 1", *given])) if given else None
    start = time.perf_counter()
    graph = core.Graph(text)
    devices = core.cluster_devices(cluster)
    searched = core.search_plan(graph, devices, cluster, batches=int(batches), constraints=said)
    seconds = time.perf_counter() - start
    first = searched.rows[0]
    _, decisions, choices, sums, inside = searched.inside
    return {
        "seconds": seconds,
        "inside": inside,
        "decisions": decisions,
        "choices": choices,
        "sums": sums,
        "lowered": len(searched.rows),
        "plan": first["plan"],
        "step": first["seconds"],
    }


if __name__ == "__main__":
    print(json.dumps(_search(*sys.argv[1:])))
