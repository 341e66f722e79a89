"""`shardwright check`: proves a program that was emitted equal to its model."""

from __future__ import annotations

import argparse
from pathlib import Path

from .parser import Commands


def add(commands: Commands) -> None:
    from .model import add_model

    check = commands.add_parser("check", help="prove that an emitted program equals its model")
    check.add_argument("program", help="its folder")
    add_model(check, optional="; without it, the graph that the folder has beside the program")
    check.add_argument(
        "--numeric",
        action="store_true",
        help="also run all ranks and the model on formal numbers: a second check, for small models",
    )
    check.add_argument(
        "--batches", type=int, default=2, help="micro-batches of the step that --numeric runs (default: 2)"
    )
    check.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from .._core import compare_numbers, verify
    from ..report.progress import Progress, wanted
    from .source import graph_of, read

    folder = Path(arguments.program)
    files = {file.name: read(file) for file in [*sorted(folder.glob("*.py")), folder / "program.json"]}
    progress = Progress(wanted(None))
    with progress.phases(folder.name) as phases:
        phases.begin("capture")
        graph = read(folder / "graph.txt") if arguments.model is None else graph_of(arguments).text
        phases.begin("check")
        proof = verify(graph, files)
    print(proof.rstrip())
    if arguments.numeric:
        with progress.phases(folder.name) as phases:
            phases.begin("on numbers")
            verdict, text = compare_numbers(graph, files, max(arguments.batches, 1))
        print(f"on numbers: {verdict}\n{text.rstrip()}")
