"""Runs over several hosts, as the page says: hosts are namespaces, each with a network of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed")

import hosts
import ready_python
from hosts import Hosts

# Eight minutes, most of them of waiting for hosts that are gone.
pytestmark = pytest.mark.skipif(
    not os.environ.get("SHARDWRIGHT_HOSTS"), reason="`make hosts` runs what takes networks of its own"
)

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE = 500
STEPS = 12
SAVED, GONE = 5, 7
SETTINGS = {"steps": STEPS, "checkpoints.every": SAVED, "evaluation.every": 1000, "log.every": 1}
# How many ranks there are. In that step those of the last host wait for its end, and with them all others.
HOOK = f"""
import socket, time
from pathlib import Path

class Ranks:
    def step(self, training, measured):
        measured["ranks"] = training.model.comm.world
        if training.step == {GONE} and socket.gethostname() == Path("lost").read_text():
            Path("here").touch()
            time.sleep({PATIENCE})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ranks.py").write_text(HOOK)
    (tmp_path / "lost").touch()
    return copied(tmp_path)


def copied(folder: Path) -> Path:
    for file in (*(EXAMPLES / "run_file").iterdir(), EXAMPLES / "launch" / "two_hosts.sh"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of one process, by step."""
    folder = copied(tmp_path_factory.mktemp("whole"))
    command = [ready_python.command(), "-m", "shardwright", "train", "run.yaml", *settings()]
    done = subprocess.run(
        command, cwd=folder, env=ready_python.environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return {step["step"]: step["loss"] for step in steps_of(folder)}


@pytest.fixture
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts]:
    if why := hosts.missing():
        pytest.skip(why)
    with Hosts(request.param, tmp_path) as machines:
        yield machines


def settings(**more: Any) -> list[str]:
    return [word for name, value in {**SETTINGS, **more}.items() for word in ("--set", f"{name}={value}")]


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """A line may be half written."""
    file = folder / "steps.jsonl"
    text = file.read_text() if file.exists() else ""
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [step for step in found if "loss" in step]


def start(
    machines: Hosts, at: int, folder: Path, env: dict[str, str], *words: str
) -> subprocess.Popen[bytes]:
    """The page's line, on one of them."""
    name = machines.names[at]
    said = {"FIRST": machines.names[0], "GLOO_SOCKET_IFNAME": hosts.LINK, **env}
    with (folder / f"{name}.out").open("ab") as out:
        return machines.start(at, ["sh", "two_hosts.sh", *words], cwd=folder, env=said, stdout=out)


def said(folder: Path) -> str:
    return "\n".join(f"{file.name}:\n{file.read_text()}" for file in sorted(folder.glob("*.out")))


def wait_for(agents: list[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    try:
        codes = [agent.wait(max(1, deadline - time.monotonic())) for agent in agents]
    except subprocess.TimeoutExpired:
        pytest.fail(said(folder))
    assert codes == [0] * len(agents), said(folder)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "machines, each, plan",
    [(2, 1, "zero1"), (2, 2, "stages:2 x zero1:2 x 1f1b"), (4, 1, "stages:2 x megatron:2 x 1f1b")],
    indirect=["machines"],
)
def test_hosts_train_as_one_process(
    machines: Hosts, each: int, plan: str, folder: Path, expected: dict[int, float]
) -> None:
    env = {"HOSTS": str(len(machines.names)), "RANKS": str(each), "RESTARTS": "0"}
    words = settings(**{"plan.name": plan, "hooks": "[ranks.py:Ranks]"})
    wait_for([start(machines, at, folder, env, *words) for at in range(len(machines.names))], folder)
    steps = steps_of(folder)
    assert {step["ranks"] for step in steps} == {each * len(machines.names)}
    assert {step["step"]: step["loss"] for step in steps} == pytest.approx(expected, rel=2e-5)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("machines", [3], indirect=True)
def test_a_host_whose_power_fails_is_left_out(
    machines: Hosts, folder: Path, expected: dict[int, float]
) -> None:
    """Nobody closes its connections: that it is gone follows from its silence. `auto` plans anew for two."""
    (folder / "lost").write_text(machines.names[-1])
    known = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5"
    cache = str(folder / "cache")
    env = {"HOSTS": "2:3", "RANKS": "1", "PET_RDZV_CONF": known, "SHARDWRIGHT_CACHE": cache}
    words = settings(**{"plan.name": "auto", "hooks": "[ranks.py:Ranks]"})
    agents = [start(machines, at, folder, env, *words) for at in range(3)]
    deadline = time.monotonic() + PATIENCE
    while not (folder / "here").exists():
        assert agents[0].poll() is None and time.monotonic() < deadline, said(folder)
        time.sleep(0.05)
    machines.cut_off(2)
    wait_for(agents[:2], folder)
    steps = steps_of(folder)
    for step in steps:
        assert step["loss"] == pytest.approx(expected[step["step"]], rel=2e-5), step
    ranks = [(step["step"], step["ranks"]) for step in steps]
    fewer = ranks.index((SAVED + 1, 2))
    assert ranks[:fewer] in ([(at, 3) for at in range(1, last)] for last in (GONE, GONE + 1))
    assert ranks[fewer:] == [(at, 2) for at in range(SAVED + 1, STEPS + 1)]
    assert f"step-{SAVED:08d}: {SAVED} of {STEPS} steps are done" in said(folder)
    assert "SW0783" in said(folder)
