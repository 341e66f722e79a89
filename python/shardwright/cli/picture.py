"""`--svg FILE` of a command: what it shows, as a picture."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def add_svg(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--svg", metavar="FILE", help=f"draw {what} there, as SVG")


def draw(arguments: argparse.Namespace, svg: Callable[[], str]) -> None:
    """Writes the picture, if one is asked for."""
    from .cluster import write

    if arguments.svg is not None:
        write("SW0934", "the picture", Path(arguments.svg), svg())


def lines_of_picture(arguments: argparse.Namespace) -> list[str]:
    return [] if arguments.svg is None else [f"The picture is in {arguments.svg}."]
