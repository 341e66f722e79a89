"""The console command `shardwright`: one file a command, each with `add` and what it runs.

Nothing here imports PyTorch before a command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..errors import ShardwrightError
from . import (
    cache,
    check,
    ckpt,
    clusters,
    compare,
    completion,
    demo,
    doctor,
    emit,
    explain,
    manifest,
    models,
    ops,
    plan,
    profile,
    report,
    run,
    schedule,
    schema,
    simulate,
    train,
    verify,
)
from .parser import Parser
from .style import error_text

COMMANDS = (
    demo,
    plan,
    compare,
    emit,
    check,
    run,
    train,
    verify,
    simulate,
    manifest,
    report,
    profile,
    schedule,
    models,
    clusters,
    ops,
    ckpt,
    cache,
    doctor,
    explain,
    schema,
    completion,
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    arguments.words = list(sys.argv[1:] if argv is None else argv)
    try:
        return int(arguments.run(arguments) or 0)
    except ShardwrightError as error:
        print(error_text(error, sys.stderr), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output, `head` say, has seen enough; Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parser() -> Parser:
    parser = Parser(
        prog="shardwright",
        description="Turns a PyTorch model for one device into a program for many, proved equal.",
        epilog="`shardwright COMMAND --help` says more of each.",
    )
    parser.add_argument("--version", action="version_when_asked", help="print the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser
