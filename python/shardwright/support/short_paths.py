"""Paths of source files that are the same on every machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

INSTALLED = ("site-packages", "dist-packages")
NOTEBOOK = re.compile(r"ipykernel_\d+|^<ipython-input")


def short_path(file: str) -> str:
    """A path from the outermost package that holds the file; never an absolute path."""
    if NOTEBOOK.search(file):
        return "notebook"
    parts = os.path.abspath(file).replace(os.sep, "/").split("/")
    for folder in INSTALLED:
        if folder in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(folder) :])
    return "/".join(_from_package(parts))


def _from_package(parts: list[str]) -> Iterable[str]:
    start = len(parts) - 1
    while start > 1 and os.path.isfile("/".join([*parts[:start], "__init__.py"])):
        start -= 1
    return parts[start:]
