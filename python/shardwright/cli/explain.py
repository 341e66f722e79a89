"""`shardwright explain SW0310`: what the page of errors says of a code."""

from __future__ import annotations

import argparse
import re
import sys
from importlib import resources

from ..errors import CaptureError
from ..support.suggestions import did_you_mean
from .parser import Commands
from .style import paint

PAGE = "errors.md"
"""A link to `docs/reference/errors.md`, and in an installed package that page itself."""


def add(commands: Commands) -> None:
    explain = commands.add_parser("explain", help="explain an error by its code, such as SW0310")
    explain.add_argument("code", nargs="?", help="without one: all codes")
    explain.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    sections = explained()
    if arguments.code is None:
        print("\n".join(f"{code}  {title}" for code, (title, _) in sections.items()))
        return
    code = code_of(arguments.code)
    if code not in sections:
        raise CaptureError(
            "SW0155",
            f"there is no error {code}",
            why="the page of errors has no section of this code",
            fix=did_you_mean(code, sections) or "`shardwright explain` lists all codes",
        )
    title, text = sections[code]
    print(paint(f"{code}: {title}", "bold", sys.stdout) + f"\n\n{text}")


def code_of(given: str) -> str:
    """`sw310`, `310` and `error[SW0310]:` are SW0310."""
    digits = re.search(r"(\d+)\D*$", given)
    return f"SW{int(digits[1]):04}" if digits else given


def explained() -> dict[str, tuple[str, str]]:
    """Of each code its title and its text."""
    page = resources.files("shardwright").joinpath(PAGE).read_text(encoding="utf-8")
    pieces = re.split(r"^### (SW\d{4}): (.*)$", page, flags=re.MULTILINE)
    codes, titles, texts = pieces[1::3], pieces[2::3], pieces[3::3]
    return {
        code: (title, re.split(r"^## ", text, flags=re.MULTILINE)[0].strip())
        for code, title, text in zip(codes, titles, texts, strict=True)
    }
