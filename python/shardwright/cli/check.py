"""`shardwright check`: proves a program that was emitted."""

from __future__ import annotations

import argparse
from pathlib import Path

from .parser import Commands


def add(commands: Commands) -> None:
    check = commands.add_parser("check", help="prove a program that was emitted")
    check.add_argument("program", help="its folder")
    check.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from .._core import verify
    from .model import read

    folder = Path(arguments.program)
    files = {file.name: read(file) for file in [*sorted(folder.glob("*.py")), folder / "program.json"]}
    print(verify(read(folder / "graph.txt"), files).rstrip())
