"""What is installed: the version, the types, and the console command."""

from __future__ import annotations

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
