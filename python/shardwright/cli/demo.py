"""`shardwright demo`."""

from __future__ import annotations

import argparse

from .parser import Commands


def add(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="train a small GPT on local processes, compared with one device")
    demo.add_argument("--devices", type=int, default=4)
    demo.add_argument("--plan", default="data:2 x megatron:2")
    demo.add_argument("--to", help="folder for the emitted program")
    demo.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from .. import demo

    return demo.main(arguments.devices, arguments.plan, arguments.to)
