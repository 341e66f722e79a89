"""The cluster that a command names, and a step of a plan on it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .parser import suggest

if TYPE_CHECKING:
    from .._core import Graph, Plan, Simulated

CLUSTERS = ("dgx-h100:8x4", "dgx-a100:8x2", "dgx-v100:16x2", "h200:1", "ethernet-25g:4x8", "l4:8x2", "cpu:4")
"""What completion offers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from .model import add_arguments

    add_arguments(parser)
    cluster = parser.add_argument(
        "--cluster", required=True, help="a name such as dgx-h100:8x4, or the path of a cluster's file"
    )
    suggest(cluster, CLUSTERS)
    parser.add_argument(
        "--batches", type=int, help="micro-batches of a step, each as large as the model's example inputs"
    )
    parser.add_argument("--optimizer", default="adamw", help="whose step is counted: adamw, sgd, none, ...")


def simulated(arguments: argparse.Namespace) -> tuple[Graph, Plan, Simulated, int]:
    from .._core import compile, simulate_step
    from .model import graph_of, plan_of

    name, text = cluster_of(arguments.cluster)
    graph = graph_of(arguments, arguments.micro_batches)
    plan = plan_of(arguments, graph)
    batches = arguments.micro_batches if arguments.batches is None else arguments.batches
    found = simulate_step(
        plan, compile(plan), name, text, batches=max(batches, 0), optimizer=arguments.optimizer
    )
    return graph, plan, found, batches


def cluster_of(name: str) -> tuple[str, str | None]:
    """Its name, and what its file says if it has one."""
    from .model import read

    path = Path(name)
    return name, read(path) if path.suffix == ".toml" or path.is_file() else None


def time_of(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
