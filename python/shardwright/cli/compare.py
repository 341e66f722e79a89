"""`shardwright compare`: the well-known plans in all their shapes beside each other, on a cluster."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import PlanError, ShardwrightError
from ..report.memory import DOES_NOT_FIT
from ..schemas import answer
from . import candidates
from .parser import Commands
from .picture import add_svg, draw, lines_of_picture
from .working import working

if TYPE_CHECKING:
    from .._core import Found, Graph

# So many lines are read.
SHOWN = 12
# A name that is longer goes on in the next line.
WIDEST = 36


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
    searched = list(searches_of(arguments, start, uncut, clashes))
    if not searched:
        raise clashes[-1]
    searches = [[{"micro_batches": many, **row} for row in one.rows] for many, _, one in searched]
    order = sorted(
        (not candidate["fits"], candidate["seconds"], which, at)
        for which, search in enumerate(searches)
        for at, candidate in enumerate(search)
    )
    rows = [searches[which][at] for _, _, which, at in order]
    shown = len(rows) if arguments.all else SHOWN
    kept = _keep(arguments, searched, [(which, at) for _, _, which, at in order[:shown]])
    status = DOES_NOT_FIT if order and order[0][0] else 0
    model = searched[0][1].model
    bound = min(one.bound for _, _, one in searched)
    summary = {
        "model": model,
        "cluster": arguments.cluster,
        "devices": _devices(arguments),
        "bound": bound,
        "tried": [sum(one.tried[at] for _, _, one in searched) for at in (0, 1)],
        "seconds": time.perf_counter() - start,
        "left_out": sum(one.left_out for _, _, one in searched),
        "passed_over": sorted({name: why for _, _, one in searched for name, why in one.passed_over}.items()),
        "uncut": uncut,
        "constraints": max(one.constraints for _, _, one in searched),
        "rows": rows,
    }
    draw(arguments, lambda: _drawn(arguments, model, searched))
    if arguments.json:
        print(answer("compare", summary))
        return status
    for line in _lines(summary, shown):
        print(line)
    if kept and rows:
        asked = f"{arguments.model} --cluster {arguments.cluster}"
        print(f"next: `shardwright plan {asked} --plan row:1`, or another row")
    for line in lines_of_picture(arguments):
        print(line)
    return status


def _drawn(arguments: argparse.Namespace, model: str, searched: Sequence[tuple[int, Graph, Found]]) -> str:
    from .._core import compared_svg

    searches = [(many, one) for many, _, one in searched]
    return compared_svg(model, arguments.cluster, _devices(arguments), searches)


def _keep(
    arguments: argparse.Namespace,
    searched: Sequence[tuple[int, Graph, Found]],
    shown: Sequence[tuple[int, int]],
) -> bool:
    """For other commands, the plans that are shown: of which search, and where in it."""
    plans = [(searched[which][0], searched[which][2].plan(at)) for which, at in shown]
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
            with working(arguments.model, "capture"):
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
                result = choice.search(graph, devices, True, shown, below, watch=phases.begin)
            except PlanError as error:
                # A line that cannot be read has a place, constraints that clash have several.
                if error.place is not None:
                    raise
                clashes.append(error)
                continue
        steps += [row["seconds"] for row in result.rows if row["fits"]]
        yield choice.batches, graph, result


def _devices(arguments: argparse.Namespace) -> int:
    from .._core import cluster_devices
    from ..start.auto_plan import cluster_of
    from ..start.planning import require_devices

    devices: int | None = arguments.devices
    if devices is None:
        return cluster_devices(*cluster_of(arguments.cluster))
    require_devices(devices)
    return devices


def _lines(summary: dict[str, Any], shown: int) -> Iterator[str]:
    from .found import NOTHING_TO_DIVIDE

    rows = summary["rows"]
    best = rows[0]["seconds"] if rows else 1.0
    yield from _answer(summary)
    yield ""
    shown_rows = rows[:shown]
    wide = min(max((len(row["plan"]) for row in shown_rows), default=4), WIDEST)
    yield (
        f"{'row':>4} {'plan':<{wide}} {'batches':>7} {'step':>9} {'':>7} {'MFU':>6} {'memory':>10}"
        f" {'exposed':>7} {'idle':>6}"
    )
    for number, row in enumerate(shown_rows, 1):
        lines = textwrap.wrap(row["plan"], wide, break_on_hyphens=False)
        yield f"{number:>4} {lines[0]:<{wide}} {_figures(row, best)}".rstrip()
        yield from (f"{'':>4}   {line}" for line in lines[1:])
    if len(rows) > shown:
        yield f"... and {len(rows) - shown} more (--all)"
    tried, shapes = summary["tried"]
    yield ""
    if summary["constraints"]:
        yield f"all respect the constraints: {summary['constraints']}"
    yield from summary["uncut"]
    if summary["left_out"]:
        yield f"{summary['left_out']} more plans were left out: none of them is quicker than these (--all)"
    if summary["devices"] == 1:
        yield NOTHING_TO_DIVIDE
    none = len(summary["passed_over"])
    yield f"{tried} of {shapes} shapes in {summary['seconds']:.1f} s; {none} plans do not fit this model"


def _answer(summary: dict[str, Any]) -> Iterator[str]:
    """The quickest plan, and how good it is."""
    from ..report.memory import size_of
    from ..report.summary import batches_of, time_of

    rows = summary["rows"]
    on = f"{summary['model']} on {summary['cluster']}"
    if not rows:
        yield f"{on}: there is no plan"
        return
    first = rows[0]
    (_, needed, there), step = first["memory"], time_of(first["seconds"])
    if not first["fits"]:
        yield f"{on}: no plan fits into {size_of(there)} of a device"
        return
    yield f"{on}: `{first['plan']}` is the quickest"
    batches = batches_of(first["micro_batches"])
    yield f"a step takes {step} in {batches}, and {size_of(needed)} of {size_of(there)}"
    if summary["bound"] > 0:
        times = first["seconds"] / summary["bound"]
        bound = f"no plan takes less than {time_of(summary['bound'])}"
        yield f"{bound}: this one takes at most {times:.2f} times that"


def _figures(row: dict[str, Any], best: float) -> str:
    from ..report.memory import size_of
    from ..report.summary import time_of

    (_, needed, there), (_, on_host, _) = row["memory"], row["on_host"]
    step = row["seconds"]
    times = f"{step / best:.2f}x" if row["fits"] and best > 0 else ""
    exposed, idle = (f"{row[part] / step:.1%}" if step > 0 else "" for part in ("exposed", "idle"))
    too_much = "" if row["fits"] else "  too much" if needed > there else f"  {size_of(on_host)} on host"
    return (
        f"{row['micro_batches']:>7} {time_of(step):>9} {times:>7} {row['utilisation']:>6.1%}"
        f" {size_of(needed):>10} {exposed:>7} {idle:>6}{too_much}"
    )
