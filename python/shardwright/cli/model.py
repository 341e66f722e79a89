"""What commands are told of a model and its plan."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..shipped.table import SHIPPED
from .parser import suggest

if TYPE_CHECKING:
    from .._core import Graph, Plan


def plans() -> tuple[str, ...]:
    """What completion offers."""
    from .._core import plan_examples

    return ("auto", *plan_examples())


def add_arguments(parser: argparse.ArgumentParser, needs_cluster: bool = False) -> None:
    from .cluster import add_cluster

    add_model(parser)
    parser.add_argument(
        "--devices", type=int, help="number of devices; without it, what the plan says, or all of the cluster"
    )
    plan = parser.add_argument(
        "--plan",
        default="auto",
        help="a named plan, the path of a plan file, `row:3` of the last `compare`, or `auto` (the quickest)",
    )
    suggest(plan, plans)
    add_cluster(parser, needs_cluster)
    parser.add_argument("--json", action="store_true", help="print what is known as JSON")


def add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory of each device, such as 16GiB: a plan that needs more is refused",
    )
    parser.add_argument(
        "--optimizer",
        default="adamw",
        help="optimizer whose state is counted: adamw, sgd, sgd-momentum, none, ...",
    )


def limit_of(arguments: argparse.Namespace) -> tuple[int | str, str] | None:
    """What a rank has, and the optimizer whose state is in it."""
    return (arguments.memory, arguments.optimizer) if arguments.memory else None


def add_model(parser: argparse.ArgumentParser, optional: str = "") -> None:
    """What `source_of` reads; `optional` says what holds without a model."""
    model = parser.add_argument(
        "model",
        nargs="?" if optional else None,
        help="a name such as llama-3-8b (`shardwright models` lists them); FILE.py:FUNCTION, which returns"
        " a module and its example inputs; a graph's file; or hf:CLASS:config.json, a class of Transformers"
        " without weights" + optional,
    )
    suggest(model, tuple(SHIPPED))
    add_sizes(parser)
    parser.add_argument(
        "--micro-batches",
        type=int,
        metavar="N",
        help="cut the batch into N micro-batches; without it 1, or for a chosen plan as many as are best",
    )
    parser.add_argument(
        "--discover", action="store_true", help="discover rules of what runs as it is, by running it in parts"
    )
    parser.add_argument(
        "--known-inputs",
        metavar="NAME,...",
        help="static inputs, which the model may read in Python: '*' for all, '' for none; without it, those"
        " that it has to read",
    )


def add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, help="batch of a model with a name, or from hf: (8)")
    parser.add_argument(
        "--sequence", type=int, help="sequence of such a model, in tokens (128 from hf:) or residues"
    )


def require_cluster(arguments: argparse.Namespace) -> None:
    """Before a model is captured: nothing can be chosen without."""
    from ..start.auto_plan import AUTO
    from ..start.planning import no_cluster

    if arguments.plan == AUTO and arguments.cluster is None:
        from .source import require_there

        require_there(arguments.model)
        raise no_cluster()


def plan_of(arguments: argparse.Namespace, graph: Graph, plan: str | None = None) -> Plan:
    from ..constraints import nothing_to_choose
    from ..start.auto_plan import AUTO
    from ..start.planning import make_plan
    from .cluster import choice_of

    candidate = getattr(arguments, "candidate", None)
    if plan is None and candidate is not None:
        from .._core import Plan

        return Plan.parse(graph, candidate.text)
    named = plan or arguments.plan
    if arguments.constraints is not None and named != AUTO:
        raise nothing_to_choose(named)
    chooses = named == AUTO and arguments.cluster is not None
    choice = choice_of(arguments) if chooses else None
    return make_plan(graph, named, devices_of(arguments, graph, named), choice)


def devices_of(arguments: argparse.Namespace, graph: Graph | None, plan: str) -> int | None:
    """As many as somebody says: the call, the plan itself, or else the cluster."""
    if arguments.devices is not None or arguments.cluster is None:
        devices: int | None = arguments.devices
        return devices
    from .._core import cluster_devices
    from ..start.auto_plan import cluster_of
    from ..start.planning import stated_devices

    stated = None if graph is None else stated_devices(graph, plan)
    return stated or cluster_devices(*cluster_of(arguments.cluster))
