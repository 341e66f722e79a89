"""A step of a plan on a cluster, as commands name both."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core import Compiled, Found, Graph, Plan, Simulated
    from ..start.auto_plan import Choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of what is simulated."""
    from .model import add_arguments

    add_arguments(parser, needs_cluster=True)
    parser.add_argument(
        "--optimizer", default="adamw", help="optimizer whose step is counted: adamw, sgd, none, ..."
    )
    parser.add_argument(
        "--compile", action="store_true", help="PyTorch compiles the local code, as with `compile=True`"
    )


@dataclass(frozen=True)
class Step:
    """What was simulated, and how it came about."""

    graph: Graph
    plan: Plan
    compiled: Compiled
    simulated: Simulated
    choice: Choice
    """The cluster, and for what else it was simulated."""
    search: Found | None
    """None where the plan was named."""

    @property
    def batches(self) -> int:
        return self.choice.batches


def simulated(arguments: argparse.Namespace) -> tuple[Graph, Plan, Simulated, int]:
    step = step_of(arguments)
    return step.graph, step.plan, step.simulated, step.batches


def step_of(arguments: argparse.Namespace) -> Step:
    from .._core import compile, simulate_step
    from ..report.progress import Progress, wanted
    from .cluster import choice_of
    from .model import plan_of
    from .parts import chosen

    with Progress(wanted(None)).phases(arguments.model) as phases:
        phases.begin("capture")
        graph, made, _ = chosen(arguments, phases.begin)
        phases.begin("plan")
        plan = plan_of(arguments, graph) if made is None else made.plan(0)
        choice = choice_of(arguments)
        compiled = compile(plan, watch=phases.begin)
        phases.begin("simulate")
        simulated = simulate_step(
            plan,
            compiled,
            choice.cluster,
            choice.text,
            batches=choice.batches,
            optimizer=arguments.optimizer,
            traced=getattr(arguments, "trace", None) is not None,
            compile=arguments.compile,
        )
    return Step(graph, plan, compiled, simulated, choice, made)
