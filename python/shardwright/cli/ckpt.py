"""`shardwright ckpt`: what to do with checkpoints."""

from __future__ import annotations

import argparse

from .parser import Commands
from .working import working


def add(commands: Commands) -> None:
    ckpt = commands.add_parser("ckpt", help="inspect or convert checkpoints")
    actions = ckpt.add_subparsers(required=True, metavar="ACTION")
    info = actions.add_parser("info", help="what a checkpoint holds")
    info.add_argument("checkpoint", help="its folder")
    info.add_argument("--all", action="store_true", help="each tensor on a line of its own")
    info.add_argument("--json", action="store_true")
    info.add_argument("--verify", action="store_true", help="reads all of it, and compares the digests")
    info.set_defaults(run=run_info)
    merge = actions.add_parser("merge", help="write the model of a checkpoint as safetensors files")
    merge.add_argument("checkpoint", help="its folder")
    merge.add_argument("-o", "--to", required=True, help="a .safetensors file, or a folder for several")
    merge.add_argument("--max-shard-size", default="5GB", help="of a file in a folder")
    merge.set_defaults(run=run_merge)


def run_info(arguments: argparse.Namespace) -> None:
    from ..checkpoint.info import info, lines_of, verified
    from ..schemas import answer

    with working(arguments.checkpoint, "read and compare"):
        facts = (verified if arguments.verify else info)(arguments.checkpoint)
    print(answer("ckpt-info", facts) if arguments.json else "\n".join(lines_of(facts, arguments.all)))


def run_merge(arguments: argparse.Namespace) -> None:
    from ..weights.merging import merge

    with working(arguments.checkpoint, "merge"):
        names = merge(arguments.checkpoint, arguments.to, arguments.max_shard_size)
    print(f"{len(names)} tensors are in {arguments.to}.")
