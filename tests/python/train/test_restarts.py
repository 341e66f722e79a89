"""Runs that go on: with fewer ranks when some are gone, with all when they are back, after a full disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed")

EXAMPLE = Path(__file__).parents[3] / "examples" / "run_file"
PATIENCE = 500
# Else the store of the ranks that are gone is that of those that come after, with all that is in it.
FRESH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
STEPS = 16
KILLED, JOINED = 7, 11

# Ranks of the agent that is killed die with it. Later the others wait where they are for it to come back:
# its agent makes theirs stop, by the signal that a scheduler sends.
HOOK = f"""
import os, signal, time
from pathlib import Path

class Gone:
    def step(self, training, measured):
        world, rank = training.model.comm.world, training.model.comm.rank
        measured["ranks"] = world
        there = os.environ["GROUP"]
        if training.step == {KILLED} and world == 4 and there == "second" and not Path("gone").exists():
            time.sleep(1 - rank % 2)  # its last rank tells, and ends the agent, when both are here
            if rank % 2:
                Path("gone").touch()
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if training.step == {JOINED} and world == 2:
            Path("waits").touch()
            asked = signal.getsignal(signal.SIGTERM).__self__
            deadline = time.monotonic() + {PATIENCE}
            while not asked._asked and time.monotonic() < deadline:
                time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in EXAMPLE.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path


def settings(**more: Any) -> list[str]:
    said = {"steps": STEPS, "checkpoints.every": 5, "evaluation.every": 1000, "log.every": 1, **more}
    return [word for name, value in said.items() for word in ("--set", f"{name}={value}")]


def alone(folder: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shardwright", "train", "run.yaml", *settings(**more)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


def steps_of(file: Path) -> list[dict[str, Any]]:
    """A line may be half written."""
    text = file.read_text() if file.exists() else ""
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [step for step in found if "loss" in step]


def agent(folder: Path, name: str, port: int) -> subprocess.Popen[bytes]:
    """One of at most two hosts, with two ranks. The first has the list of who is there."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "2",
        "--max-restarts", "5", "--rdzv-id", "one", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1",
        "--rdzv-conf", f"is_host={int(name == 'first')},last_call_timeout=3,join_timeout={PATIENCE}",
        "-m", "shardwright", "train", "run.yaml",
        *settings(**{"hooks": "[gone.py:Gone]", "plan.name": "auto"}),
    ]  # fmt: skip
    with (folder / f"{name}.out").open("ab") as out:
        return subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=out, env={**os.environ, **FRESH, "GROUP": name}
        )


@pytest.mark.processes
@pytest.mark.slow
def test_a_run_goes_on_with_the_ranks_that_are_left_and_with_all_when_they_are_back(folder: Path) -> None:
    """`torchrun` cannot start fewer ranks on a host, but it can do with fewer hosts: four ranks on two, then
    two on one, then four. `auto` plans anew for each number."""
    (folder / "gone.py").write_text(HOOK)
    whole = alone(folder, **{"log.json": "whole.jsonl", "checkpoints.folder": "whole"})
    assert whole.returncode == 0, whole.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agents = [agent(folder, "first", port), agent(folder, "second", port)]
    try:
        wait_for(folder / "waits", agents[0])
        agents.append(agent(folder, "second", port))
        assert agents[0].wait(PATIENCE) == 0, (folder / "first.out").read_text()
        assert agents[2].wait(PATIENCE) == 0, (folder / "second.out").read_text()
    finally:
        for one in agents:
            one.terminate()
    assert agents[1].wait() == -signal.SIGKILL
    steps = steps_of(folder / "steps.jsonl")
    said = (folder / "first.out").read_text()
    expected = {step["step"]: step["loss"] for step in steps_of(folder / "whole.jsonl")}
    for step in steps:
        assert step["loss"] == pytest.approx(expected[step["step"]], rel=2e-5), step
    assert {step["step"] for step in steps} == set(expected)
    ranks = [(step["step"], step["ranks"]) for step in steps]
    fewer = ranks.index((6, 2))
    back = ranks.index((JOINED + 1, 4))
    assert ranks[:fewer] in ([(at, 4) for at in range(1, last)] for last in (KILLED, KILLED + 1))
    assert ranks[fewer:back] == [(at, 2) for at in range(6, JOINED + 1)]
    assert ranks[back:] == [(at, 4) for at in range(JOINED + 1, STEPS + 1)]
    for done in (5, JOINED):
        assert f"step-{done:08d}: {done} of {STEPS} steps are done" in said


def wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        assert process.poll() is None and time.monotonic() < deadline, (file.parent / "first.out").read_text()
        time.sleep(0.1)


FULL = """
import resource

class Full:
    def step(self, training, measured):
        if training.step == 6:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_disk_that_fills_up_leaves_the_last_complete_checkpoint(folder: Path) -> None:
    """From the sixth step on no file grows beyond 8 KiB: the save at the tenth fails, and the run ends with
    the reason. What it goes on from is said."""
    (folder / "full.py").write_text(FULL)
    whole = alone(folder, **{"log.json": "whole.jsonl", "checkpoints.folder": "whole"})
    assert whole.returncode == 0, whole.stderr
    first = alone(folder, hooks="[full.py:Full]")
    assert first.returncode == 1 and "File too large" in first.stderr, first.stderr
    complete = [path.parent.name for path in (folder / "checkpoints").glob("step-*/.metadata")]
    assert complete == ["step-00000005"]
    rest = alone(folder)
    assert rest.returncode == 0, rest.stderr
    assert f"step-00000005: 5 of {STEPS} steps are done" in rest.stdout
    expected = {step["step"]: step["loss"] for step in steps_of(folder / "whole.jsonl")}
    for step in steps_of(folder / "steps.jsonl"):
        assert step["loss"] == pytest.approx(expected[step["step"]], rel=1e-9), step
