"""`shardwright train`: a training run that a YAML file describes."""

from __future__ import annotations

import argparse

from .parser import Commands


def add(commands: Commands) -> None:
    train = commands.add_parser(
        "train", help="train a model as a YAML file says, on the ranks that there are"
    )
    train.add_argument("config", nargs="?", help="the run's YAML file")
    train.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="in the place of what the file says: `--set optimizer.lr=1e-4`; may be repeated",
    )
    train.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="start so many local processes; without it, the ranks that `torchrun` has started, or one",
    )
    train.add_argument(
        "--check",
        action="store_true",
        help="capture, plan, prove and estimate, for --devices, without training",
    )
    train.add_argument("--devices", type=int, metavar="N", help="devices of --check")
    train.add_argument("--profile", type=int, metavar="N", help="train N steps, and write a trace of them")
    train.add_argument("--schema", action="store_true", help="print the JSON schema of the file, for editors")
    train.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import json

    if arguments.schema:
        from ..train.config import Config
        from ..train.schema import schema_of

        print(json.dumps(schema_of(Config), indent=2))
        return 0
    from ..train import running

    if arguments.config is None:
        raise running.without_file()
    if arguments.check:
        return running.check(arguments.config, arguments.set, arguments.devices)
    return running.start(arguments.config, arguments.set, arguments.processes, arguments.profile)
