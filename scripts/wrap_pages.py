#!/usr/bin/env python3
"""Wraps the prose of the pages at 100 characters; code, tables, headings and comments stay as they are.

python scripts/wrap_pages.py            all pages
python scripts/wrap_pages.py docs/faq.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
GENERATED = ("zoo.md", "interface.md", "operators.md", "CHANGELOG.md")
ITEM = re.compile(r"( *)([-*]|\d+\.) +")
TOKEN = re.compile(r"(?:`[^`]*`|[^\s`])+")
"""A word, with whatever stands in backticks in it."""
STARTS = re.compile(r"[-+*>]$|#+$|\d+[.)]$")
"""What begins a list, a heading or a quotation where it begins a line."""
FIXED = ("|", "#", "<!--", "![", "[![", "---")


def main() -> int:
    for page in [Path(name) for name in sys.argv[1:]] or pages():
        text = page.read_text()
        if (wrapped := wrap(text)) != text:
            page.write_text(wrapped)
    return 0


def pages() -> list[Path]:
    every_page = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in every_page if page.name not in GENERATED)


def wrap(text: str) -> str:
    lines: list[str] = []
    paragraph: list[str] = []
    for line, is_prose in marked(text.splitlines()):
        if paragraph and (not is_prose or ITEM.match(line)):
            lines += wrapped(paragraph)
            paragraph = []
        if is_prose:
            paragraph.append(line)
        else:
            lines.append(line)
    return "\n".join([*lines, *wrapped(paragraph)]) + "\n"


def marked(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is prose."""
    is_code = is_comment = False
    for line in lines:
        bare = line.strip()
        is_fence = bare.startswith("```")
        is_comment = is_comment or bare.startswith("<!--")
        fixed = is_code or is_fence or is_comment or not bare or bare.startswith(FIXED)
        is_code ^= is_fence
        is_comment = is_comment and "-->" not in line
        yield line, not fixed


def wrapped(paragraph: list[str]) -> Iterator[str]:
    if not paragraph:
        return
    item = ITEM.match(paragraph[0])
    head = item[0] if item else re.match(" *", paragraph[0])[0]  # type: ignore[index]
    indent = " " * len(head)
    line = head
    for token in glued(TOKEN.findall(" ".join([paragraph[0][len(head) :], *paragraph[1:]]))):
        if line.strip() and line != head and len(line) + 1 + len(token) > WIDTH:
            yield line
            line = indent
        line += token if line in (head, indent) else f" {token}"
    yield line


def glued(tokens: list[str]) -> list[str]:
    """A token that would begin something at a line's begin stays behind the one before it."""
    joined: list[str] = []
    for token in tokens:
        if joined and STARTS.match(token):
            joined[-1] += f" {token}"
        else:
            joined.append(token)
    return joined


if __name__ == "__main__":
    sys.exit(main())
