"""What a worker of the tests said when it crashed: at the end of the output, where people look for it."""

from __future__ import annotations

import faulthandler
import os
import shutil
import tempfile
from pathlib import Path

import pytest

FOLDER = "SHARDWRIGHT_TEST_CRASHES"


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """After pytest's own plugin, which would write the stack between other lines."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        os.environ[FOLDER] = tempfile.mkdtemp()
    elif FOLDER in os.environ:
        faulthandler.enable(os.open(Path(os.environ[FOLDER], worker), os.O_WRONLY | os.O_CREAT))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for file in sorted(Path(os.environ[FOLDER]).iterdir()):
        if stack := file.read_text():
            terminalreporter.section(f"{file.name} crashed")
            terminalreporter.write(stack)
    shutil.rmtree(os.environ[FOLDER])
