"""What is installed: the version, the types, and the console command."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import shardwright

pytestmark = pytest.mark.oldest


def test_the_version_is_the_installed_one() -> None:
    assert shardwright.__version__ == metadata.version("shardwright")


def test_it_tells_that_it_is_typed() -> None:
    assert resources.files(shardwright).joinpath("py.typed").is_file()
    assert resources.files(shardwright).joinpath("_core.pyi").is_file()


def test_it_has_the_page_of_errors() -> None:
    assert "### SW0310: " in resources.files(shardwright).joinpath("errors.md").read_text(encoding="utf-8")


def test_everything_exported_exists() -> None:
    assert not [name for name in shardwright.__all__ if not hasattr(shardwright, name)]


def test_the_console_command_explains_itself() -> None:
    command = Path(sys.executable).parent / "shardwright"
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "demo" in done.stdout


@pytest.mark.processes
@pytest.mark.slow
def test_the_demo_runs_where_there_is_no_numpy(tmp_path: Path) -> None:
    """A module of this name that cannot be imported hides one that is there."""
    (tmp_path / "numpy.py").write_text('raise ModuleNotFoundError("there is no numpy")\n')
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = "from shardwright.cli import main; main(['demo', '--devices', '2', '--plan', 'megatron'])"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert "The losses are equal" in done.stdout, done.stderr
