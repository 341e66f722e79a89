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
# The machines, as their pages describe them: the card, what is other than in the catalog, GB/s of a link
# inside of a node, whether its switches sum, and the network of a device.
CARDS = {
    "a100": ("a100", "", 300, False, "200 Gbit/s"),
    "a100-40g": ("a100-40g", "", 300, False, "200 Gbit/s"),
    "h100": ("h100", "", 450, True, "400 Gbit/s"),
    # 96 GB of slower memory, and 500 W of 700: the clock goes with the root of the power that is there for
    # computing, which is what 130 W at rest leave.
    "h100-500w": (
        "h100",
        'memory = "96 GB"\nbandwidth = "2.4 TB/s"\npeak = { f32 = "54 TFLOP/s", bf16 = "797 TFLOP/s" }\n',
        450, True, "400 Gbit/s",
    ),
}  # fmt: skip
# FlashAttention's first algorithm in Triton, which MPT was measured with: operations a second of a large
# forward and backward. On A100 by the figures of FlashAttention 2's paper; on H100 nobody published any.
TRITON = {"a100": (105e12, 80e12), "a100-40g": (105e12, 80e12), "h100": (190e12, 140e12)}
# Its FSDP gathers ahead in forward only (`BACKWARD_POST`): of what is gathered twice and summed once, in
# float32 or bfloat16, so much is hidden.
HIDDEN = {"f32": 0.25, "bf16": 0.33}
NODE = 8


def bench(quick: bool) -> Table:
    rows = [row for row in csv.DictReader(ROWS.open()) if not quick or row["model"] == "MPT-125m"]
    table = Table(
        "published",
        "Predicted beside published",
        "Tokens a second and GPU that others measured (`benches/published.csv` says who, and on what), and"
        " what `shardwright simulate` says of the same model under the same plan. Ratios are predicted by"
        " measured speed. Rank correlation (Spearman) is of tokens times operations of a token: which of the"
        " group uses its devices better.",
        ["group", "rows", "median ratio", "least", "most", "rank correlation"],
    )
    by_group: dict[str, list[tuple[float, float, dict[str, str]]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            estimate = predicted(row, Path(folder))
            by_group[row["group"]].append((estimate, float(row["measured"]), row))
            print(
                f"{row['group']} {row['model']} {row['length']} x {row['micro']} on {row['devices']}"
                f" {row['card']}, {row['plan']}{' compiled' if row['compiled'] == 'yes' else ''}:"
                f" {estimate:.0f} for {row['measured']}, {estimate / float(row['measured']):.2f}",
                file=sys.stderr,
                flush=True,
            )
    for group, all_of in sorted(by_group.items()):
        ratios = sorted(estimate / measured for estimate, measured, _ in all_of)
        ranks = spearman([(t * _work(r), m * _work(r)) for t, m, r in all_of])
        table.add(
            group, str(len(ratios)), f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f}",
            f"{ratios[-1]:.2f}", f"{ranks:.2f}" if len(ratios) > 2 else "",
        )  # fmt: skip
        table.values[group] = {"median": statistics.median(ratios), "ratios": ratios, "ranks": ranks}
    every = [t / m for all_of in by_group.values() for t, m, _ in all_of]
    error = statistics.median(abs(math.log(ratio)) for ratio in every)
    table.notes.append(
        f"Of all {len(every)} rows the median error is {math.expm1(error):.0%}, and"
        f" {sum(not 1 / 1.4 < ratio < 1.4 for ratio in every)} are off by more than 1.4 times."
    )
    return table


def predicted(row: dict[str, str], folder: Path) -> float:
    """Tokens a second and device."""
    batch, batches, devices = (int(row[name]) for name in ("micro", "batches", "devices"))
    batch *= int(row["copies"])
    sizes = [row[name] for name in ("layers", "width", "heads", "inner", "words")]
    shape = [row["model"], *sizes, str(batch), row["length"], row["recompute"], row["reduce"]]
    text = folder / f"{'-'.join(shape)}.txt"
    if not text.is_file():
        compile_time.child("capture", str(text), *shape, script=__file__)
    step = compile_time.child(
        "simulate", str(text), row["plan"], str(devices), str(batches), cluster(row), row["compiled"],
        script=__file__, timeout=1200,
    )  # fmt: skip
    return batch * batches * int(row["length"]) / step["seconds"] / devices


def cluster(row: dict[str, str]) -> str:
    card, devices = row["card"], int(row["devices"])
    like, more, link, sums, network = CARDS[card]
    return (
        f'name = "{card}"\n[network]\nbandwidth = "{network}"\nlatency = "14 us"\nstart = "20 us"\n'
        f'reached = 0.85\n[[nodes]]\ncount = {max(devices // NODE, 1)}\ndevices = "{card}-here:{NODE}"\n'
        f'link = {{ bandwidth = "{link} GB/s", latency = "3.4 us", start = "8.4 us", reached = 0.77'
        f'{", sums = true" if sums else ""} }}\n[devices.{card}-here]\nlike = "{like}"\n{more}'
        + (_foundry(row) if row["model"].startswith("MPT") else "")
    )


def _foundry(row: dict[str, str]) -> str:
    """What is other in llm-foundry, as a file says it: what messages hold up, and what attention takes."""
    card = row["card"]
    sizes = [1e8, 1e9, 1e10, 1e11, 1e12]
    shares = [0.05, 0.3, 0.7, 0.95, 1.0]
    text = (
        f'[devices.{card}-here.runtime]\nstep = "0 us"\ncall = "45 us"\nwake = "0 us"\nlaunch = "6 us"\n'
        f"hidden = {HIDDEN[row['reduce']]}\n"
    )
    for way, rate in zip(("forward", "backward"), TRITON[card], strict=True):
        seconds = [size / (rate * share) for size, share in zip(sizes, shares, strict=True)]
        text += (
            f'[[devices.{card}-here.operators]]\nkind = "attention"\ndtype = "bf16"\npass = "{way}"\n'
            f"operations = {sizes}\nseconds = {seconds}\n"
        )
    return text


def _work(row: dict[str, str]) -> float:
    """Operations of a token, about."""
    layers, width, inner = (int(row[name]) for name in ("layers", "width", "inner"))
    parameters = layers * width * (4 * width + (2 if row["model"].startswith("MPT") else 3) * inner)
    return 6 * (parameters + width * int(row["words"])) + 6 * layers * width * int(row["length"])


def spearman(pairs: list[tuple[float, float]]) -> float:
    """Rank correlation; what is equal has the rank between."""

    def ranks(values: list[float]) -> list[float]:
        order = sorted(values)
        return [order.index(value) + (order.count(value) - 1) / 2 for value in values]

    ours, theirs = (ranks([pair[at] for pair in pairs]) for at in (0, 1))
    return statistics.correlation(ours, theirs) if len(pairs) > 2 else 1.0


def _capture(path: str, name: str, *rest: str) -> dict[str, int]:
    import as_published
    import torch

    from shardwright import Precision
    from shardwright.capture import capture

    *sizes, batch, length = map(int, rest[:-2])
    recompute, reduce = rest[-2:]
    model, args = as_published.build(name, *sizes, batch=batch, length=length, recompute=recompute)
    narrow = torch.bfloat16
    # Without masters sums travel as they arise.
    precision = Precision(narrow, narrow, *(() if reduce == "f32" else (narrow, narrow)))
    captured = capture(model, args, precision=precision)
    Path(path).with_suffix(".json").write_text(
        json.dumps({n: str(kept) for n, kept in captured.kept.items()})
    )
    return {"text": Path(path).write_text(captured.graph_text)}


def _simulate(path: str, name: str, devices: str, batches: str, text: str, compiled: str) -> dict[str, Any]:
    core = compile_time.extension()
    graph = core.Graph(Path(path).read_text())
    kept = json.loads(Path(path).with_suffix(".json").read_text())
    plan = core.Plan.named(graph, name, int(devices))
    program = core.compile(plan, "loss", kept=kept)
    seconds = core.simulate_seconds(
        plan, program, "published", text, int(batches), kept=kept, compile=compiled == "yes"
    )
    return {"seconds": seconds}


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    print(json.dumps(_capture(*rest) if what == "capture" else _simulate(*rest)))
