"""`shardwright ckpt`: what to do with checkpoints."""

from __future__ import annotations

import argparse

from .parser import Commands


def add(commands: Commands) -> None:
    ckpt = commands.add_parser("ckpt", help="what to do with checkpoints")
    actions = ckpt.add_subparsers(required=True, metavar="ACTION")
    merge = actions.add_parser("merge", help="the model of a checkpoint as safetensors files")
    merge.add_argument("checkpoint", help="its folder")
    merge.add_argument("-o", "--to", required=True, help="a .safetensors file, or a folder for several")
    merge.add_argument("--max-shard-size", default="5GB", help="of a file in a folder")
    merge.set_defaults(run=run_merge)


def run_merge(arguments: argparse.Namespace) -> None:
    from ..weights.merging import merge

    names = merge(arguments.checkpoint, arguments.to, arguments.max_shard_size)
    print(f"{len(names)} tensors are in {arguments.to}.")
