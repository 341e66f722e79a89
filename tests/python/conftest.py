"""Tests are quiet, and leave nothing in the user's cache or in the temporary directory. Processes that they
start inherit it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("SHARDWRIGHT_CACHE", "off")
os.environ.setdefault("SHARDWRIGHT_PROGRESS", "off")


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Such as for reports of bugs, which users are to find later."""
    before = os.environ.get("TMPDIR")
    folder = tmp_path_factory.mktemp("temporary")
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    yield folder
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before
    tempfile.tempdir = None
