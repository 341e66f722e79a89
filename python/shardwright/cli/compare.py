"""`shardwright compare`: the well-known plans in all their shapes beside each other, on a cluster."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import PlanError, ShardwrightError
from ..report.memory import DOES_NOT_FIT
from . import candidates
from .parser import Commands
from .picture import add_svg, draw, lines_of_picture

if TYPE_CHECKING:
    from .._core import Found, Graph

# So many lines are read.
SHOWN = 12


def add(commands: Commands) -> None:
    from .cluster import add_cluster
    from .model import add_memory, add_model

    compare = commands.add_parser("compare", help="compare the named plans in all their shapes, on a cluster")
    add_model(compare)
    compare.add_argument("--devices", type=int, help="number of devices; without it, all of the cluster")
    add_cluster(compare, required=True)
    add_memory(compare)
    compare.add_argument("--all", action="store_true", help="every plan that was evaluated")
    add_svg(compare, "step time against memory")
    compare.add_argument("--json", action="store_true", help="print what is known as JSON")
    compare.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    start = time.perf_counter()
    uncut: list[str] = []
    clashes: list[ShardwrightError] = []
    found = list(searches_of(arguments, start, uncut, clashes))
    if not found:
        raise clashes[-1]
    searches = [[{"micro_batches": many, **row} for row in one.rows] for many, _, one in found]
    order = sorted(
        (not candidate["fits"], candidate["seconds"], which, at)
        for which, search in enumerate(searches)
        for at, candidate in enumerate(search)
    )
    rows = [searches[which][at] for _, _, which, at in order]
    shown = len(rows) if arguments.all else SHOWN
    kept = _keep(arguments, found, [(which, at) for _, _, which, at in order[:shown]])
    status = DOES_NOT_FIT if order and order[0][0] else 0
    model = found[0][1].model
    bound = min(one.bound for _, _, one in found)
    told = {
        "model": model,
        "cluster": arguments.cluster,
        "devices": _devices(arguments),
        "bound": bound,
        "tried": [sum(one.tried[at] for _, _, one in found) for at in (0, 1)],
        "seconds": time.perf_counter() - start,
        "left_out": sum(one.left_out for _, _, one in found),
        "passed_over": sorted({name: why for _, _, one in found for name, why in one.passed_over}.items()),
        "uncut": uncut,
        "constraints": max(one.constraints for _, _, one in found),
        "rows": rows,
    }
    draw(arguments, lambda: _drawn(arguments, model, found))
    if arguments.json:
        print(json.dumps(told))
        return status
    for line in _lines(told, shown):
        print(line)
    if kept and rows:
        print("a row is a plan for other commands, by its number or its name: `--plan row:1`")
    for line in lines_of_picture(arguments):
        print(line)
    return status


def _drawn(arguments: argparse.Namespace, model: str, found: Sequence[tuple[int, Graph, Found]]) -> str:
    from .._core import compared_svg

    searches = [(many, one) for many, _, one in found]
    return compared_svg(model, arguments.cluster, _devices(arguments), searches)


def _keep(
    arguments: argparse.Namespace, found: Sequence[tuple[int, Graph, Found]], shown: Sequence[tuple[int, int]]
) -> bool:
    """For other commands, the plans that are shown: of which search, and where in it."""
    plans = [(found[which][0], found[which][2].plan(at)) for which, at in shown]
    cut = arguments.batches is None
    return candidates.keep(
        arguments, [candidates.Candidate(plan.name, many, cut, plan.folded) for many, plan in plans]
    )


def searches_of(
    arguments: argparse.Namespace, start: float, uncut: list[str], clashes: list[ShardwrightError]
) -> Iterator[tuple[int, Graph, Found]]:
    """For each number of micro-batches, while there is time and batches can be cut; `uncut` says why not.

    `clashes` are of those numbers with which no plan respects the constraints.
    """
    from ..report.progress import Progress, wanted
    from ..report.summary import batches_of
    from ..start.micro_batch_search import parts_of
    from .cluster import choice_of
    from .source import source_of

    source = source_of(arguments)
    asked = arguments.micro_batches
    if asked is None and arguments.batches is not None:
        asked = 1
    shown = None if arguments.all or arguments.json else SHOWN
    steps: list[float] = []
    for many in parts_of(source.rows) if asked is None else [asked]:
        late = arguments.deadline is not None and time.perf_counter() - start > arguments.deadline
        if late and many > 1 and asked is None:
            return
        try:
            graph, _ = source.graph(many)
        except ShardwrightError as error:
            if asked is not None or many == 1:
                raise
            uncut.append(f"in {many} parts it cannot be cut: {error.what}")
            return
        choice = choice_of(arguments, many)
        devices = _devices(arguments)
        with Progress(wanted(None)).phases(batches_of(many)) as phases:
            below = sorted(steps)[SHOWN - 1] if shown and len(steps) >= SHOWN else None
            try:
                found = choice.search(graph, devices, True, shown, below, watch=phases.begin)
            except PlanError as error:
                # A line that cannot be read has a place, constraints that clash have several.
                if error.place is not None:
                    raise
                clashes.append(error)
                continue
        steps += [row["seconds"] for row in found.rows if row["fits"]]
        yield choice.batches, graph, found


def _devices(arguments: argparse.Namespace) -> int:
    from .._core import cluster_devices
    from ..start.auto_plan import cluster_of
    from ..start.planning import require_devices

    devices: int | None = arguments.devices
    if devices is None:
        return cluster_devices(*cluster_of(arguments.cluster))
    require_devices(devices)
    return devices


def _lines(told: dict[str, Any], shown: int) -> Iterator[str]:
    from ..report.summary import time_of
    from .found import NOTHING_TO_DIVIDE

    rows = told["rows"]
    best = rows[0]["seconds"] if rows else 1.0
    yield f"{told['model']} on {told['cluster']}"
    yield (
        f"{'row':>4} {'plan':<48} {'micro-batches':>13} {'step':>9} {'':>7} {'MFU':>8}  {'memory':<22}"
        f" {'computes':>8} {'exposed':>8} {'idle':>6}"
    )
    for number, row in enumerate(rows[:shown], 1):
        yield f"{number:>4} {_row(row, best)}"
    if len(rows) > shown:
        yield f"... and {len(rows) - shown} more (--all)"
    tried, of = told["tried"]
    yield ""
    if rows and rows[0]["fits"] and told["bound"] > 0:
        yield (
            f"no plan can take less than {time_of(told['bound'])}: the first takes at most"
            f" {best / told['bound']:.2f} times the lower bound"
        )
    if told["constraints"]:
        yield f"all respect the constraints: {told['constraints']}"
    yield from told["uncut"]
    if told["left_out"]:
        yield f"{told['left_out']} more plans were left out: none of them is quicker than these (--all)"
    if told["devices"] == 1:
        yield NOTHING_TO_DIVIDE
    none = len(told["passed_over"])
    yield f"{tried} of {of} shapes in {told['seconds']:.1f} s; {none} plans do not fit this model"


def _row(row: dict[str, Any], best: float) -> str:
    from ..report.memory import size_of
    from ..report.summary import time_of

    (_, needed, there), (_, on_host, _) = row["memory"], row["on_host"]
    memory = f"{size_of(needed)} of {size_of(there)}"
    if not row["fits"]:
        memory = f"{size_of(needed)}: too much" if needed > there else f"{size_of(on_host)} on host: too much"
    step = row["seconds"]
    waits = row["exposed"] + row["idle"]
    times = f"{step / best:.2f}x" if row["fits"] and best > 0 else ""
    parts = step - waits, row["exposed"], row["idle"]
    computes, exposed, idle = (f"{part / step:.1%}" if step > 0 else "" for part in parts)
    return (
        f"{row['plan']:<48} {row['micro_batches']:>13} {time_of(step):>9} {times:>7}"
        f" {row['utilisation']:>8.1%}  {memory:<22} {computes:>8} {exposed:>8} {idle:>6}"
    ).rstrip()
