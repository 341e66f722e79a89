"""`shardwright emit`: compiles a model and writes its program."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .parser import Commands

# So many micro-batches of a step show its beginning, its middle and its end.
DRAWN = 6


def add(commands: Commands) -> None:
    from .model import add_arguments, add_memory

    emit = commands.add_parser("emit", help="compile a model and write its program; needs no device")
    add_arguments(emit)
    emit.add_argument("-o", "--to", required=True, help="folder for the program")
    emit.add_argument("--outputs", choices=["loss", "all"], default="loss")
    emit.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="whether to report progress on stderr; also $SHARDWRIGHT_PROGRESS",
    )
    emit.add_argument(
        "--verbose",
        action="store_true",
        help="also report what the compiler counted; also $SHARDWRIGHT_VERBOSE",
    )
    add_memory(emit)
    emit.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from .._core import compile
    from ..api import write_files
    from ..report.progress import Progress, verbose, wanted
    from ..report.summary import lines_of, seconds_of, summary_of
    from ..runtime.programs.program import GRAPH
    from ..schemas import answer
    from ..start.edited_program import MADE_OF, PLAN
    from .model import limit_of, plan_of, require_cluster
    from .parts import chosen

    require_cluster(arguments)
    progress = Progress(wanted(arguments.progress))
    with progress.phases(arguments.model) as phases:
        phases.begin("capture")
        graph, search, _ = chosen(arguments, lambda _: phases.begin("plan"))
        phases.begin("plan")
        plan = plan_of(arguments, graph) if search is None else search.plan(0)
        compiled = compile(plan, arguments.outputs, phases.begin, memory=limit_of(arguments))
        phases.begin("keep")
        files = {**compiled.files, GRAPH: graph.text, PLAN: plan.folded}
        made_of = _made_of(arguments)
        if made_of is not None:
            files[MADE_OF] = json.dumps(made_of, indent=1) + "\n"
        write_files(files, arguments.to)
    summary = summary_of(graph.model, plan, compiled, optimizer=arguments.optimizer)
    if arguments.json:
        print(answer("emit", _numbers(compiled) | {"summary": summary}))
        return
    print(compiled.proof.rstrip())
    _draw(compiled)
    print(f"\nThe program is in {arguments.to}.")
    sys.stdout.flush()
    progress.say(
        *lines_of(
            summary,
            seconds_of(phases.seconds, phases.total),
            f"in {arguments.to}",
            memory=arguments.memory,
            verbose=verbose(arguments.verbose),
        )
    )


def _made_of(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """How the model was named, so that `shardwright run` finds it; a graph cannot be run."""
    from .source import is_graph

    if is_graph(arguments.model):
        return None
    names = ("model", "batch", "sequence", "micro_batches", "discover", "known_inputs")
    return {name: getattr(arguments, name) for name in names} | {"outputs": arguments.outputs}


def _draw(compiled: Any) -> None:
    """What ranks do in a step, where that is a pipeline."""
    figure = compiled.timetable(DRAWN)
    if figure:
        print(
            f"\nA step of {DRAWN} micro-batches, forward (F) and backward (B) of each:\n\n{figure.rstrip()}"
        )


def _numbers(compiled: Any) -> dict[str, Any]:
    return {
        "digest": compiled.digest,
        "files": sorted(compiled.files),
        "communications": [dict(counts) for counts in compiled.counts],
        "bytes_held": list(compiled.held),
        "operators_without_rule": list(compiled.unknown),
        "seconds": dict(compiled.phases),
    }
