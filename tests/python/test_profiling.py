"""`shardwright profile`: what it writes is a cluster, with figures of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright._core import cluster_devices
from shardwright.cli import main

pytestmark = pytest.mark.processes


def test_the_devices_here_are_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "here.toml"
    assert main(("profile", "--devices", "2", "-o", str(path))) == 0
    assert capsys.readouterr().out == path.read_text()
    assert cluster_devices("here", path.read_text()) == 2
    graph = str(Path(__file__).parent / "golden" / "gpt.graph")
    assert main(("simulate", graph, "--devices", "2", "--cluster", str(path))) == 0
    assert "a step takes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--devices", "0", "-o", "here.toml"), "SW0915"), (("-o", "nowhere/here.toml"), "SW0916")],
)
def test_refusals(
    words: tuple[str, ...],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(("profile", *words)) == 1
    assert code in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
