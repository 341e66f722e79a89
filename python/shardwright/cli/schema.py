"""`shardwright schema`: the JSON Schemas of what commands print with `--json`."""

from __future__ import annotations

import argparse

from ..schemas import VERSIONS
from .parser import Commands


def add(commands: Commands) -> None:
    schema = commands.add_parser("schema", help="print the JSON Schema of what a command prints with --json")
    schema.add_argument(
        "answer", nargs="?", choices=list(VERSIONS), help="such as plan; without it, all of them are listed"
    )
    schema.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    import json

    from ..schemas import named, text_of

    if arguments.answer is not None:
        print(text_of(arguments.answer), end="")
        return
    print(f"{'schema':<16} {'version':<28} of what")
    for name in VERSIONS:
        print(f"{name:<16} {named(name):<28} {json.loads(text_of(name))['title']}")
