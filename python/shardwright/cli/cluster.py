"""The cluster that a command names."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ClusterError
from ..support.deadline import deadline_of, default_deadline
from .parser import suggest

if TYPE_CHECKING:
    from ..start.auto_plan import Choice

# Of micro-batches: more than a step has. The compiler, whose numbers end somewhere, refuses as many.
TOO_MANY = 1 << 17


def add_cluster(parser: argparse.ArgumentParser, required: bool = False) -> None:
    cluster = parser.add_argument(
        "--cluster",
        required=required,
        help="a name such as dgx-h100:8x4 (see `shardwright clusters`), or the path of a cluster's file"
        + ("" if required else "; what the plan `auto` is chosen for"),
    )
    suggest(cluster, clusters)
    parser.add_argument(
        "--constraints",
        metavar="FILE",
        help="constraints of a chosen plan: a file, a partial plan, or the name of a plan",
    )
    parser.add_argument(
        "--batches", type=int, help="micro-batches of a step, each as large as the model's example inputs"
    )
    parser.add_argument(
        "--deadline",
        type=float,
        metavar="SECONDS",
        default=default_deadline(),
        help="seconds of search, after which the best plan so far is taken: 60, or $SHARDWRIGHT_DEADLINE;"
        " inf goes to the end",
    )


def clusters() -> tuple[str, ...]:
    """What completion offers."""
    from .._core import cluster_examples

    return tuple(name for name, _ in cluster_examples())


def choice_of(arguments: argparse.Namespace, micro_batches: int | None = None) -> Choice:
    """For what a plan is chosen, or what it is simulated on."""
    from ..constraints import constraints_of
    from ..start.auto_plan import Choice, cluster_of

    asked = arguments.micro_batches if micro_batches is None else micro_batches
    many = 1 if asked is None else asked
    batches = many if arguments.batches is None else arguments.batches
    memory = getattr(arguments, "memory", None)
    name, text = cluster_of(arguments.cluster)
    constraints = constraints_of(arguments.constraints)
    within = min(max(batches, 0), TOO_MANY)
    return Choice(
        name, text, within, arguments.optimizer, memory, deadline_of(arguments.deadline), constraints
    )


def write(code: str, what: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClusterError(
            code,
            f"{what} cannot be written to {path}",
            why=error.strerror or str(error),
            fix="name a file in a folder that exists and can be written to",
        ) from None
