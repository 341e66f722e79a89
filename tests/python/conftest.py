"""Tests are quiet, and leave nothing in the user's cache or in the temporary directory. Processes that they
start inherit it."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("SHARDWRIGHT_CACHE", "off")
os.environ.setdefault("SHARDWRIGHT_PROGRESS", "off")

# Each collection looks at all that torch and the models of other tests have made, for a third of a second.
gc.set_threshold(50_000, 20, 10)


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
