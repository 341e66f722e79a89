"""Errors beside the golden ones: whatever is wrong is refused in words, what, where, why, and what to do.

Whole messages are in `golden/refusals.txt`; `UPDATE_GOLDEN=1 pytest tests/python/refusals` writes them anew
(in one process), and the review is the diff.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardwright as sw
from shardwright._core import plan_names

GOLDEN = Path(__file__).parent / "golden" / "refusals.txt"
# What changes with every edit: lines of Python, digests, where JSON breaks off.
VOLATILE = [
    (re.compile(r"(\w+\.(?:py|json)):\d+"), r"\1:N"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "DIGEST"),
    (re.compile(r"(line|column|char) \d+(?= column|\)|$)", re.MULTILINE), r"\1 N"),
    (re.compile(r"column \d+(?= \(char)"), "column N"),
]


def known() -> dict[str, str]:
    if not GOLDEN.exists():
        return {}
    sections = GOLDEN.read_text().split("## ")[1:]
    return dict(section.rstrip("\n").split("\n", 1) for section in sections)


# A new plan changes no message but those that list all.
ALL_PLANS = ", ".join(f"`{name}`" for name in plan_names())


def expect(title: str, message: str, **words: object) -> None:
    """Compares with the golden message; paths are what `words` says."""
    for word, path in words.items():
        message = message.replace(str(path), word)
    message = message.replace(ALL_PLANS, "PLANS")
    for pattern, word in VOLATILE:
        message = pattern.sub(word, message)
    if os.environ.get("UPDATE_GOLDEN"):
        sections = {**known(), title: message}
        GOLDEN.write_text("\n".join(f"## {key}\n{sections[key]}\n" for key in sorted(sections)))
    assert message == known().get(title)


def refused(title: str, action: Callable[[], Any], **words: object) -> None:
    with pytest.raises(sw.ShardwrightError) as caught:
        action()
    error = caught.value
    # What is wrong with a call says why; what to do about an edit is clear.
    if error.code != "SW0105" and not title.startswith(("verify:", "load:")):
        assert error.fix, f"it does not say what to do: {error}"
        assert error.why or error.place, f"it says neither where nor why: {error}"
    expect(title, str(error), **words)
