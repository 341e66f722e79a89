"""Steps that others measured on GPUs, beside what the cost model says of the same model, plan and cluster.

`published.csv` has the rows: what was measured, where it was published, and the plan that is the same here.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import compile_time
from tables import Table

ROWS = Path(__file__).with_suffix(".csv")
# The machines, as their pages describe them.
CLUSTERS = {
    "a100": ("a100", "", "200 Gbit/s"),
    "a100-40g": ("a100-40g", "", "200 Gbit/s"),
    # 96 GB of slower memory, and 500 of 700 W: the clock that is left under load.
    "h100-500w": (
        "h100",
        'memory = "96 GB"\nbandwidth = "2.4 TB/s"\npeak = { f32 = "57 TFLOP/s", bf16 = "850 TFLOP/s" }\n',
        "400 Gbit/s",
    ),
}
NODE = 8


def bench(quick: bool) -> Table:
    rows = [row for row in csv.DictReader(ROWS.open()) if not quick or row["model"] == "MPT-125m"]
    table = Table(
        "published",
        "Predicted beside published",
        "Tokens a second and GPU that others measured (`benches/published.csv` says who, and on what), and"
        " what `shardwright simulate` says of the same model under the same plan. Ratios are predicted by"
        " measured speed. Rank correlation (Spearman) is of tokens times operations of a token: which of the"
        " group uses its devices better. MPT's sequences are of 8,192 words at most: longer ones were"
        " measured with an older kernel of attention.",
        ["group", "rows", "median ratio", "least", "most", "rank correlation"],
    )
    found: dict[str, list[tuple[float, float, dict[str, str]]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            told = predicted(row, Path(folder))
            found[row["group"]].append((told, float(row["measured"]), row))
            print(
                f"{row['group']} {row['model']} {row['length']} x {row['micro']} on {row['devices']}"
                f" {row['card']}, {row['plan']}{' compiled' if row['compiled'] == 'yes' else ''}:"
                f" {told:.0f} for {row['measured']}, {told / float(row['measured']):.2f}",
                file=sys.stderr,
                flush=True,
            )
    for group, all_of in sorted(found.items()):
        ratios = sorted(told / measured for told, measured, _ in all_of)
        ranks = _spearman([(t * _work(r), m * _work(r)) for t, m, r in all_of])
        table.add(
            group, str(len(ratios)), f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f}",
            f"{ratios[-1]:.2f}", f"{ranks:.2f}" if len(ratios) > 2 else "",
        )  # fmt: skip
        table.values[group] = {"median": statistics.median(ratios), "ratios": ratios, "ranks": ranks}
    every = [t / m for all_of in found.values() for t, m, _ in all_of]
    error = statistics.median(abs(math.log(ratio)) for ratio in every)
    table.notes.append(
        f"Of all {len(every)} rows the median error is {math.expm1(error):.0%}, and"
        f" {sum(not 1 / 1.4 < ratio < 1.4 for ratio in every)} are off by more than 1.4 times."
    )
    return table


def predicted(row: dict[str, str], folder: Path) -> float:
    """Tokens a second and device."""
    batch = int(row["micro"]) * int(row["copies"])
    shape = [row[name] for name in ("layers", "width", "heads", "inner", "words")]
    text = folder / f"{'-'.join(shape)}-{batch}-{row['length']}.txt"
    if not text.is_file():
        kind = "mpt" if row["model"].startswith("MPT") else "llama"
        compile_time.child("capture", str(text), kind, str(batch), *shape, row["length"], script=__file__)
    devices, batches = row["devices"], row["batches"]
    told = compile_time.child(
        "simulate", str(text), row["plan"], devices, batches, cluster(row["card"], int(devices)),
        script=__file__, timeout=1200,
    )  # fmt: skip
    return batch * int(batches) * int(row["length"]) / told["seconds"] / int(devices)


def cluster(card: str, devices: int) -> str:
    like, more, network = CLUSTERS[card]
    return (
        f'name = "{card}"\n[network]\nbandwidth = "{network}"\nlatency = "14 us"\nstart = "20 us"\n'
        f'reached = 0.85\n[[nodes]]\ncount = {max(devices // NODE, 1)}\ndevices = "{card}:{NODE}"\n'
        + _link(like)
        + (f'[devices.{card}]\nlike = "{like}"\n{more}' if more else "")
    )


def _link(like: str) -> str:
    bandwidth = {"a100": 300, "a100-40g": 300, "h100": 450}[like]
    sums = "" if like.startswith("a100") else ", sums = true"
    rest = f'latency = "3.4 us", start = "8.4 us", reached = 0.77{sums}'
    return f'link = {{ bandwidth = "{bandwidth} GB/s", {rest} }}\n'


def _work(row: dict[str, str]) -> float:
    """Operations of a token, about."""
    layers, width, inner = (int(row[name]) for name in ("layers", "width", "inner"))
    parameters = layers * width * (4 * width + (2 if row["model"].startswith("MPT") else 3) * inner)
    return 6 * (parameters + width * int(row["words"])) + 6 * layers * width * int(row["length"])


def _spearman(pairs: list[tuple[float, float]]) -> float:
    def ranks(values: list[float]) -> list[float]:
        order = sorted(range(len(values)), key=values.__getitem__)
        return [float(order.index(at)) for at in range(len(values))]

    ours, theirs = (ranks([pair[at] for pair in pairs]) for at in (0, 1))
    return statistics.correlation(ours, theirs) if len(pairs) > 2 else 1.0


def _capture(path: str, kind: str, batch: str, *sizes: str) -> dict[str, int]:
    import shapes

    from shardwright.capture import capture

    layers, width, heads, inner, words, length = map(int, sizes)
    if kind == "mpt":
        model, args = shapes.mpt(layers, width, heads, inner, words, int(batch), length)
    else:
        model, args = shapes._llama(int(batch), length, layers, width, heads, inner)
    return {"text": Path(path).write_text(capture(model, args).graph_text)}


def _simulate(path: str, name: str, devices: str, batches: str, text: str) -> dict[str, Any]:
    core = compile_time.extension()
    graph = core.Graph(Path(path).read_text())
    plan = core.Plan.named(graph, name, int(devices))
    step = core.simulate_step(plan, core.compile(plan, "loss"), "published", text, int(batches))
    return {"seconds": step.seconds}


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    print(json.dumps(_capture(*rest) if what == "capture" else _simulate(*rest)))
