"""`shardwright plan`: prints a plan."""

from __future__ import annotations

import argparse

from .parser import Commands


def add(commands: Commands) -> None:
    from .model import add_arguments

    plan = commands.add_parser("plan", help="print a plan, one line for each operator")
    add_arguments(plan)
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from .model import graph_of, plan_of

    print(plan_of(arguments, graph_of(arguments)).text, end="")
