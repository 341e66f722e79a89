"""`make gpu` where there is no GPU: each part runs as a whole, and finds the fault that it plants.

Times mean nothing then, and none is judged.
"""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
import ready_python

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "gpu"
PARTS = sorted(path.stem for path in (SCRIPTS / "parts").glob("[!_]*.py"))
# What is planted into the others takes as long as the part itself; `run.py --dry --planted` looks at all.
QUICK = ["environment", "equal", "host", "nccl", "rank", "roofline", "syncs"]

pytestmark = pytest.mark.slow


Ran = tuple[int, dict[str, Any], str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Ran]]:
    """Parts are forked off a process that has torch already."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    script = importlib.import_module("run")
    before = signal.getsignal(signal.SIGTERM)

    def ended(command: list[str], log: Path, most: int) -> tuple[int, str]:
        ended = forked.script(Path(command[1]), *command[2:], folder=log.parent)
        log.write_text(ended.out + ended.error)
        return ended.code, ""

    def run(part: str, out: Path, *flags: str) -> Ran:
        monkeypatch.setattr(script, "_ended", ended)
        monkeypatch.setattr(sys, "argv", ["run.py", "--dry", *flags, "--only", part, "--out", str(out)])
        code = script.main()
        return code, json.loads((out / "gpu.json").read_text())[part], "".join(capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, before)


def test_the_script_is_a_command(tmp_path: Path):
    command = [ready_python.command(), str(SCRIPTS / "run.py"), "--dry", "--only", "environment"]
    command += ["--out", str(tmp_path)]
    done = subprocess.run(
        command, env=ready_python.environment(), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "environment.log").exists() and (tmp_path / "gpu.md").exists()


def test_no_part_is_left_out():
    listed = [line.split('"')[1] for line in (SCRIPTS / "run.py").read_text().splitlines() if '": ' in line]
    assert set(PARTS) <= set(listed)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_runs_as_a_whole(part: str, tmp_path: Path, run: Callable[..., Ran]):
    code, written, said = run(part, tmp_path)
    assert not written["failures"], said
    assert code == 0, said
    assert any(table["rows"] for table in written["tables"]), said
    assert f"## {part.capitalize()}" in (tmp_path / "gpu.md").read_text()


@pytest.mark.parametrize("part", QUICK)
def test_each_part_finds_the_fault_that_it_plants(part: str, tmp_path: Path, run: Callable[..., Ran]):
    code, written, said = run(part, tmp_path, "--planted")
    assert written["failures"], said
    # It was found by looking, and nothing else went wrong.
    assert not [why for why in written["failures"] if "ended with" in why or "not done after" in why], said
    assert code == 0, said


def test_what_is_hidden_is_counted_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import traces

    def at(*spans: tuple[float, float]) -> list[Any]:
        return [traces.Event("kernel", "", start, end - start, 0) for start, end in spans]

    assert traces.hidden(at((0, 10)), at((2, 4), (3, 6), (9, 20))) == pytest.approx(0.5)
    assert traces.hidden(at((0, 2), (1, 4), (6, 8)), at((3, 7))) == pytest.approx(2 / 6)
    assert traces.hidden(at((0, 1)), at((1, 2))) == 0
