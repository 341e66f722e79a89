"""What a worker of the tests said when it crashed: at the end of the output, where people look for it."""

from __future__ import annotations

import faulthandler
import os
import shutil
import tempfile
from pathlib import Path

import pytest

FOLDER = "SHARDWRIGHT_TEST_CRASHES"
# Of the process that others are workers of: a test may run pytest, too.
_made: list[Path] = []


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """After pytest's own plugin, which would write the stack between other lines."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        _made.append(Path(tempfile.mkdtemp()))
        os.environ[FOLDER] = str(_made[-1])
    elif FOLDER in os.environ:
        faulthandler.enable(os.open(Path(os.environ[FOLDER], worker), os.O_WRONLY | os.O_CREAT))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    while _made:
        folder = _made.pop()
        for file in sorted(folder.iterdir()):
            if stack := file.read_text():
                terminalreporter.section(f"{file.name} crashed")
                terminalreporter.write(stack)
        shutil.rmtree(folder)
