"""`shardwright simulate`: a step of a plan on a cluster, without the cluster."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parser import Commands
from .picture import add_svg, draw, lines_of_picture

# There are at most so many of memory over time.
LINES = 32

if TYPE_CHECKING:
    from .._core import Graph, Plan, Simulated
    from .step import Step


def add(commands: Commands) -> None:
    from .step import add_arguments

    simulate = commands.add_parser("simulate", help="predict how long a step of a plan takes on a cluster")
    add_arguments(simulate)
    simulate.add_argument(
        "--trace", metavar="FILE", help="write a timeline there, which ui.perfetto.dev opens"
    )
    add_svg(simulate, "the timeline")
    simulate.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..report.memory import status_of
    from ..schemas import answer
    from .answer import of_what_is_next
    from .cluster import write
    from .step import step_of

    step = step_of(arguments)
    graph, plan, simulated, batches = step.graph, step.plan, step.simulated, step.batches
    if simulated.trace is not None:
        write("SW0913", "the timeline", Path(arguments.trace), simulated.trace)
    draw(arguments, lambda: _drawn(step))
    if arguments.json:
        print(answer("simulate", _numbers(graph, plan, simulated, batches)))
        return status_of(simulated)
    for line in lines_of_step(graph, plan, simulated, batches, arguments.cluster):
        print(line)
    if arguments.trace:
        print(f"\nThe timeline is in {arguments.trace}.")
    for line in [*of_what_is_next(arguments.plan, simulated), *lines_of_picture(arguments)]:
        print(line)
    return status_of(simulated)


def _drawn(step: Step) -> str:
    from .._core import timeline_svg

    choice = step.choice
    return timeline_svg(
        step.plan, step.compiled, step.simulated, choice.cluster, choice.text, batches=step.batches
    )


def lines_of_step(graph: Graph, plan: Plan, simulated: Simulated, batches: int, cluster: str) -> list[str]:
    from ..report.computed_work import operations_of
    from ..report.summary import batches_of, time_of

    operations, utilisation = simulated.operations
    lines = [
        f"a step takes {time_of(simulated.seconds)}, {utilisation:.1%} of what the devices can compute",
        f"memory: {_most(simulated.memory)}",
        *([f"on the host: {_most(simulated.on_host)}"] if any(has for has, _ in simulated.on_host) else []),
        f"{graph.model} under {plan.name} on {cluster}, {plan.devices} devices, {batches_of(batches)},"
        f" {operations_of(operations)} a step",
        "",
        *simulated.drawn.splitlines(),
        "",
    ]
    lines += _held(simulated)
    return lines[:-1] if not lines[-1] else lines


def _most(memory: list[tuple[int, int]]) -> str:
    """What the rank needs that needs most of what it has."""
    from ..report.memory import size_of

    rank = max(range(len(memory)), key=lambda at: (memory[at][0] / memory[at][1], -at))
    needed, there = memory[rank]
    fits = "" if needed <= there else ": it does not fit"
    return f"at most {size_of(needed)} of {size_of(there)}, on rank {rank}{fits}"


def _held(simulated: Simulated) -> list[str]:
    """Memory over time; devices in a row that hold the same are one line."""
    from ..report.memory import size_of
    from ..report.summary import set_of

    rows: list[tuple[int, int, str]] = []
    for rank, over, drawn in simulated.held:
        most = max(bytes for _, _, bytes in over)
        there = simulated.memory[rank][1]
        line = f"{drawn}  {size_of(most)} of {size_of(there)}" + (": too much" if most > there else "")
        if rows and rows[-1][1] + 1 == rank and rows[-1][2] == line:
            rows[-1] = rows[-1][0], rank, line
        else:
            rows.append((rank, rank, line))
    shown = [f"{set_of(first, last):<12}{line}" for first, last, line in rows[:LINES]]
    more = [f"... and {len(rows) - LINES} lines more"] if len(rows) > LINES else []
    return [f"{'device':<12}memory over time", *shown, *more, ""] if rows else []


def _numbers(graph: Graph, plan: Plan, simulated: Simulated, batches: int) -> dict[str, Any]:
    operations, utilisation = simulated.operations
    return {
        "model": graph.model,
        "plan": plan.name,
        "devices": plan.devices,
        "micro_batches": batches,
        "seconds": simulated.seconds,
        "operations": operations,
        "utilisation": utilisation,
        "ranks": simulated.ranks,
        "memory": [{"needed": needed, "there": there} for needed, there in simulated.memory],
        "on_host": [{"needed": needed, "there": there} for needed, there in simulated.on_host],
        "memory_over_time": [
            {"rank": rank, "stretches": [list(stretch) for stretch in over]}
            for rank, over, _ in simulated.held
        ],
    }
