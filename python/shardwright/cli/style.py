"""Colour, where somebody looks at a terminal and has not asked for none (`NO_COLOR`)."""

from __future__ import annotations

import os
from typing import TextIO

from ..errors import ShardwrightError

_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}


def coloured(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def paint(text: str, colour: str, stream: TextIO) -> str:
    return f"\033[{_CODES[colour]}m{text}\033[0m" if coloured(stream) else text


def error_text(error: ShardwrightError, stream: TextIO) -> str:
    """The layout of the error, its first words and its labels in colour."""
    colours = {"error": "red", "at": "dim", "why": "dim", "help": "green"}
    lines = []
    for line in str(error).splitlines():
        label, colon, rest = line.partition(":")
        colour = colours.get(label.strip().partition("[")[0])
        lines.append(paint(label + colon, colour, stream) + rest if colour and colon else line)
    return "\n".join(lines)
