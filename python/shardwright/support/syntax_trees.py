"""Python's text as a tree, for ranks that run in threads."""

from __future__ import annotations

import ast
from functools import lru_cache
from threading import Lock

_ONE_AT_A_TIME = Lock()


def module(text: str, name: str) -> ast.Module:
    # Python before 3.13 counts the depth of all threads' trees as one, and fails where two are made at once.
    with _ONE_AT_A_TIME:
        return ast.parse(text, name)


@lru_cache(maxsize=4096)
def expression(text: str) -> ast.expr:
    """One tree for all who ask: it is to be read only."""
    with _ONE_AT_A_TIME:
        return ast.parse(text, mode="eval").body
