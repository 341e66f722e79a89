"""`shardwright ops`: the operators that have rules."""

from __future__ import annotations

import argparse

from .parser import Commands


def add(commands: Commands) -> None:
    ops = commands.add_parser("ops", help="the operators that have rules")
    ops.set_defaults(run=run_list)


def run_list(_: argparse.Namespace) -> None:
    from .._core import operators_table

    print(operators_table(), end="")
