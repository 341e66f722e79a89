"""The pages about weights and checkpoints run as they are written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright.cli import main

DOCS = Path(__file__).resolve().parents[3] / "docs" / "how-to"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the tests run away from the repository")


def run(page: str) -> dict[str, Any]:
    """All Python of a page in one namespace, and its commands, in order."""
    namespace: dict[str, Any] = {"__name__": page}
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    for language, text in blocks:
        if language == "python":
            exec(compile(text, page, "exec"), namespace)
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line)
            assert program == "shardwright"
            assert main(words) == 0
    return namespace


def test_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run("checkpoints.md")
    assert names["start"] == 3
    full = names["model"].full_state_dict()
    assert all(torch.equal(value, full[name]) for name, value in names["plain"].state_dict().items())
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"checkpoint", "everything.pt", "model.safetensors", "folder"}


def test_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run("weights.md")
    torch.manual_seed(1234)
    expected = names["Model"]().state_dict()
    loaded = names["loaded"].full_state_dict()
    for name, value in expected.items():
        assert torch.equal(names["full"][name], value)
        assert torch.equal(loaded[name], value)
