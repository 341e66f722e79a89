"""Steps and operators that others measured on GPUs, beside what the cost model says of them.

`measured_runs.csv` has the steps with their whole plans. `measured_operators.csv` has microseconds of
operators, forward and backward, and `measured_messages.csv` what messages took on the same machines.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import compile_time
import gpt_text
from published import spearman
from tables import Table

HERE = Path(__file__).parent
NODE = 8
# What a stage of several devices communicates within the time of an operator: forward, backward.
MESSAGES = {
    "embedding": (True, True), "qkv": (False, True), "dense": (True, False), "up": (False, True),
    "down": (True, False), "loss": (True, True),
}  # fmt: skip
KINDS = {
    "products": ("qkv", "dense", "up", "down"),
    "attention's products": ("score", "context"),
    "softmax": ("softmax",),
    "attention's dropout": ("drop",),
    "dropout and sum": ("residual_1", "residual_2"),
    "gelu": ("gelu",),
    "layer norm": ("norm_1", "norm_2", "norm"),
    "embedding": ("embedding",),
    "logits and loss": ("loss",),
}
NAMES = {"v100": "V100", "a10g": "A10G", "l4": "L4", "a100-40g": "A100 40 GB"}
WAYS = ("forward", "backward")
# Kinds of a profile that are counted by operations; all others by bytes.
COMPUTE = ("contraction", "aten.bmm", "aten.baddbmm")
# The catalog's network of a node, and links that are not PCIe with access to each other's memory.
NETWORK = 'bandwidth = "100 Gbit/s"\nlatency = "14 us"\nstart = "20 us"\nreached = 0.85\nshared = true\n'
NVLINK = 'link = {{ bandwidth = "{} GB/s", latency = "3.4 us", start = "8.4 us", reached = 0.77 }}\n'
OVER_HOST = 'link = { bandwidth = "12.5 GB/s", latency = "14 us", shared = true }\n'
LINKS = {
    "a100-40g": NVLINK.format(300),
    "v100": NVLINK.format(150),
    "a10g": OVER_HOST,
    "l4": OVER_HOST,
}
FREE = 'step = "0 us"\ncall = "0 us"\nwake = "0 us"\nhidden = 1.0\nlaunch = "0 us"\n'


def bench(quick: bool) -> Table:
    runs = [row for row in _rows("measured_runs") if not quick or int(row["devices"]) <= 4]
    with tempfile.TemporaryDirectory() as folder:
        operators = _child("compare", folder, "quick" if quick else "")
        predictions = _predictions(runs, folder)
    table = Table(
        "measured",
        "Predicted beside measured runs",
        "Steps that others measured (`benches/measured_runs.csv`), predicted by measured seconds: median"
        " [least, most], and the rank correlation (Spearman) of the seconds. *Catalog*: card and machine by"
        " name, `a10g:8x2`. *Operators*: a file with the operators that were measured on that card."
        " *Operators and messages*: a file with its messages, too.",
        ["group", "rows", "catalog", "operators", "operators and messages"],
    )
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in predictions:
        groups[f"{NAMES[row['card']]}, {row['devices']} GPUs"].append(row)
    for group, rows in [*groups.items(), ("**all**", predictions)]:
        cells = [_cell(rows, at, ranks=group != "**all**") for at in range(3)]
        table.add(group, str(len(rows)), *cells)
        table.values[group] = rows
    for at, name in enumerate(table.columns[2:]):
        table.notes.append(f"*{name}*: {_error([row['told'][at] / row['measured'] for row in predictions])}.")
    table.notes.append(_operators(operators).markdown())
    return table


def _predictions(runs: list[dict[str, str]], folder: str) -> list[dict[str, Any]]:
    """What was measured twice is predicted once."""
    known: dict[str, list[float]] = {}
    predictions = []
    for row in runs:
        same = json.dumps({name: value for name, value in row.items() if name not in ("measured", "source")})
        if same not in known:
            known[same] = _child("predict", folder, same)
        predicted, measured = known[same], float(row["measured"])
        predictions.append({**row, "measured": measured, "told": predicted})
        shown = ", ".join(f"{seconds / measured:.2f}" for seconds in predicted)
        name = f"{row['card']} {row['model']} on {row['devices']}, {row['stages']}"
        print(f"{name}: {shown}", file=sys.stderr, flush=True)
    return predictions


def _child(*args: str) -> Any:
    return compile_time.child(*args, script=__file__, timeout=3000)


def _cell(rows: list[dict[str, Any]], at: int, *, ranks: bool) -> str:
    ratios = [row["told"][at] / row["measured"] for row in rows]
    text = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    if not ranks or len(rows) < 3:
        return text
    return f"{text} {spearman([(row['told'][at], row['measured']) for row in rows]):.2f}"


def _error(ratios: list[float]) -> str:
    error = statistics.median(abs(math.log(ratio)) for ratio in ratios)
    off = sum(not 1 / 1.4 < ratio < 1.4 for ratio in ratios)
    return f"median error {math.expm1(error):.0%}; {off} of {len(ratios)} are off by more than 1.4 times"


def _operators(by_database: dict[str, dict[str, dict[str, list[float]]]]) -> Table:
    table = Table(
        "measured-operators",
        "Operators",
        "Seconds of operators (`benches/measured_operators.csv`), as the catalog predicts them by measured:"
        " median forward, median backward, and the share of both within 1.4 times. Widths are 512 to 8,192,"
        " sequences one or two, and parts those of 1 to 8 devices.",
        ["operator", *by_database],
    )
    for kind in KINDS:
        cells = []
        for database in by_database.values():
            both = database[kind]
            every = [ratio for ratios in both.values() for ratio in ratios]
            share = sum(1 / 1.4 < ratio < 1.4 for ratio in every) / len(every)
            middle = " ".join(f"{statistics.median(both[way]):.2f}" for way in WAYS)
            cells.append(f"{middle}, {share:.0%} of {len(every)}")
        table.add(kind, *cells)
    table.values = by_database
    return table


# What follows runs in a process of its own, with the extension alone.


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((HERE / f"{name}.csv").open()))


def _compare(folder: str, quick: str) -> dict[str, dict[str, dict[str, list[float]]]]:
    """By database, and for each card what a file of a cluster says of its operators."""
    core = compile_time.extension()
    databases: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in _rows("measured_operators"):
        if not quick or row["width"] in ("2048", "2560"):
            databases[f"{NAMES[row['card']]} ({row['database']})"].append(row)
    by_database = {}
    for database, rows in databases.items():
        by_database[database], points = _compared(core, rows)
        (Path(folder) / rows[0]["card"]).write_text(_tables(points))
    return by_database


# For each kind of operator and pass sizes and seconds.
Points = dict[tuple[str, str, str], list[tuple[float, float]]]


def _compared(core: Any, rows: list[dict[str, str]]) -> tuple[dict[str, dict[str, list[float]]], Points]:
    """Ratios of predicted by measured seconds by kind and pass, and what was measured as a profile has it."""
    ratios: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in WAYS} for kind in KINDS}
    points: Points = defaultdict(list)
    for row in rows:
        parts = _parts(core, row)
        for kind, operators in KINDS.items():
            for operator in operators:
                for at, way in enumerate(WAYS):
                    if int(row["tensor"]) > 1 and MESSAGES.get(operator, (False, False))[at]:
                        continue
                    measured = float(row[operator].split("/")[at]) * 1e-6
                    inside = [part for part in parts if part["operator"] == operator and part["way"] == way]
                    predicted = sum(part["seconds"] * part["share"] for part in inside)
                    ratios[kind][way].append(predicted / measured)
                    for part in inside:
                        if part["dtype"] and part["size"] > 0 and part["seconds"] > 0:
                            key = (part["kind"], part["dtype"], way)
                            points[key].append((part["size"], part["seconds"] * measured / predicted))
    return ratios, points


def _parts(core: Any, row: dict[str, str]) -> list[dict[str, Any]]:
    """Each operator of one layer on a device: what the cost model counts, and the seconds that it says."""
    shape = gpt_text.Shape(1, *(int(row[name]) for name in ("width", "heads", "words", "length", "micro")))
    tensor = int(row["tensor"])
    graph = core.Graph(gpt_text.graph_text(shape))
    named = core.Plan.named(graph, f"data:1 x megatron:{tensor}", tensor)
    operators = graph.operators
    lines = [line for line in named.text.splitlines() if not line.startswith("name")]
    lines += [f"block %{operator.name.lstrip('%')}" for operator in operators]
    plan = core.Plan.parse(graph, "\n".join(lines) + "\n")
    kept = _kept(graph)
    program = core.compile(plan, "loss", kept=kept)
    text = _file(row["card"], tensor, f"[devices.here.runtime]\n{FREE}")
    simulated = core.simulate_step(plan, program, "measured", text, 1, kept=kept, traced=True)
    seconds: dict[tuple[int, str], float] = defaultdict(float)
    for event in json.loads(simulated.trace)["traceEvents"]:
        if event["pid"] == 0 and event.get("args", {}).get("instruction") in ("call", "grad"):
            seconds[event["args"]["block"], event["args"]["pass"]] += event["dur"] * 1e-6
    parts = []
    for block, operator in enumerate(operators):
        cost = plan.costs(operator)[0]
        kind = _kind(operator.target)
        flops = (cost.flops, sum(cost.gradients))
        moved = (sum(cost.forward), sum(cost.backward))
        # Where only the gradient of the input was asked for.
        share = cost.gradients[0] / flops[1] if row["backward"] == "inputs" and kind == "contraction" else 1.0
        name = operator.path.split(".")
        dtype = {"torch.float16": "f16", "torch.float32": "f32"}.get(cost.outputs[0][2], "")
        for at, way in enumerate(WAYS):
            parts.append(
                {
                    "operator": name[2] if name[0] == "layers" else name[0],
                    "kind": kind,
                    "way": way,
                    "dtype": dtype,
                    "share": share if at else 1.0,
                    "size": flops[at] if kind in COMPUTE else moved[at],
                    "seconds": seconds[block, way],
                }
            )
    return parts


def _kind(target: str) -> str:
    operator = target.rsplit(".", 1)[0]
    return "contraction" if operator == "aten.linear" else operator


def _kept(graph: Any) -> dict[str, str]:
    """Parameters are kept in float32, and read in float16."""
    lines = [line for line in graph.text.splitlines() if line.startswith("param")]
    return {line.split('"')[1]: "torch.float32" for line in lines}


def _predict(folder: str, text: str) -> list[float]:
    """Seconds of a row's step on the catalog's card, with measured operators, and with measured messages."""
    core, row = compile_time.extension(), json.loads(text)
    shape = gpt_text.Shape.from_row(row)
    graph = core.Graph(gpt_text.graph_text(shape))
    text, devices = gpt_text.plan_text(core, graph, shape.layers, row["stages"], row["recompute"])
    assert devices == int(row["devices"]), row
    kept = _kept(graph)
    plan = core.Plan.parse(graph, text)
    program = core.compile(plan, "loss", kept=kept)

    def seconds(cluster: str, text: str | None = None) -> float:
        return core.simulate_seconds(plan, program, cluster, text, int(row["batches"]), kept=kept)

    card, nodes = row["card"], int(row["nodes"])
    inside = devices // nodes
    tables = (Path(folder) / card).read_text()
    return [
        seconds(f"{card}:{inside}x{nodes}" if nodes > 1 else f"{card}:{inside}"),
        seconds("measured", _file(card, devices, tables)),
        seconds("measured", _file(card, devices, tables, _links(card))),
    ]


def _file(card: str, devices: int, tables: str, links: dict[str, str] | None = None) -> str:
    """The catalog's card on the catalog's links, unless others are given, with these tables of its device."""
    nodes = max(devices // NODE, 1)
    links = links or {"network": NETWORK, "link": LINKS.get(card, "")}
    return (
        f'name = "measured"\n[network]\n{links["network"]}[[nodes]]\ncount = {nodes}\n'
        f'devices = "here:{devices // nodes}"\n{links["link"]}'
        f'[devices.here]\nlike = "{card}"\n{tables}'
    )


def _tables(points: Points) -> str:
    """`[[devices.here.operators]]`, by kind, type and pass."""
    text = ""
    for (kind, dtype, way), measurements in sorted(points.items()):
        sizes, seconds = zip(*_binned(measurements), strict=True)
        by = "operations" if kind in COMPUTE else "bytes"
        text += (
            f'[[devices.here.operators]]\nkind = "{kind}"\ndtype = "{dtype}"\npass = "{way}"\n'
            f"{by} = {list(sizes)}\nseconds = {list(seconds)}\n"
        )
    return text


def _binned(measurements: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of sizes within a quarter of each other the mean, and the median of seconds of each operation."""
    bins: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for size, seconds in measurements:
        bins[math.floor(math.log(size) / math.log(1.25))].append((size, seconds))
    points = []
    for _, each in sorted(bins.items()):
        size = statistics.geometric_mean(size for size, _ in each)
        points.append((size, size * statistics.median(seconds / predicted for predicted, seconds in each)))
    return points


def _links(card: str) -> dict[str, str]:
    """What was measured of messages: from one device to another, and among those of a node."""
    links = {"network": "", "link": ""}
    tables = ""
    for row in _rows("measured_messages"):
        if row["card"] != card:
            continue
        sizes = [float(size) * 2**20 for size in row["MiB"].split()]
        seconds = [float(time) * 1e-3 for time in row["milliseconds"].split()]
        rate = f'bandwidth = "{sizes[-1] / seconds[-1] / 1e9:.3f} GB/s"\nlatency = "14 us"\nreached = 1.0\n'
        if row["kind"] == "network":
            links["network"] = rate
            continue
        if row["kind"] == "message":
            links["link"] = f"[nodes.link]\n{rate}"
        tables += (
            f'[[nodes.link.collectives]]\nkind = "{row["kind"]}"\ndevices = {row["devices"]}\n'
            f"bytes = {sizes}\nseconds = {seconds}\n"
        )
    return {**links, "link": links["link"] + tables}


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    print(json.dumps({"compare": _compare, "predict": _predict}[what](*rest)))
