"""Arguments as `argparse` reads them, with a suggestion for what is misspelt."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from ..support.suggestions import did_you_mean

Commands = Any
"""What `add_subparsers` returns; its class is private to argparse."""


class Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("action", "version_when_asked", _Version)

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong:
            message += did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]), "; ")
        super().error(message)


def suggest(argument: argparse.Action, values: tuple[str, ...] | Callable[[], tuple[str, ...]]) -> None:
    """What completion offers for an argument that may be something else, too, or a function that says it."""
    argument.suggestions = values  # type: ignore[attr-defined]


class _Version(argparse.Action):
    """The version is looked up in the installed packages, which takes longer than all else."""

    def __init__(self, option_strings: list[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import shardwright

        print(f"shardwright {shardwright.__version__}")
        parser.exit()
