"""`shardwright doctor`."""

from __future__ import annotations

import argparse

from .parser import Commands


def add(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor", help="check what this environment can do, and what is wrong with it"
    )
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from .. import doctor

    return doctor.main(arguments.json)
