"""Runs that go on: with fewer ranks when some are gone, with all when they are back, after a full disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed")

import ready_python

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
        if training.step == {KILLED} and world == 4 and os.environ["GROUP"] == "last":
            Path(f"here-{{rank}}").touch()
            wait(lambda: Path("killed").exists())
            os.kill(os.getpid(), signal.SIGKILL)
        if training.step == {JOINED} and world < 4:
            Path("waits").touch()
            asked = signal.getsignal(signal.SIGTERM).__self__
            wait(lambda: asked._asked)

def wait(until):
    deadline = time.monotonic() + {PATIENCE}
    while not until() and time.monotonic() < deadline:
        time.sleep(0.05)
"""
# Who is to be killed says who it is.
AGENT = """
import os, sys
from torch.distributed.run import main
with open(os.environ["GROUP"] + ".pid", "w") as file:
    file.write(str(os.getpid()))
main(sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copied(tmp_path)


def copied(folder: Path) -> Path:
    for file in EXAMPLE.iterdir():
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of the run that nothing interrupts, by step."""
    folder = copied(tmp_path_factory.mktemp("whole"))
    whole = alone(folder)
    assert whole.returncode == 0, whole.stderr
    return {step["step"]: step["loss"] for step in steps_of(folder / "steps.jsonl")}


def settings(**more: Any) -> list[str]:
    said = {"steps": STEPS, "checkpoints.every": 5, "evaluation.every": 1000, "log.every": 1, **more}
    return [word for name, value in said.items() for word in ("--set", f"{name}={value}")]


def alone(folder: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ready_python.command(), "-m", "shardwright", "train", "run.yaml", *settings(**more)],
        cwd=folder,
        env=ready_python.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def steps_of(file: Path) -> list[dict[str, Any]]:
    """A line may be half written."""
    text = file.read_text() if file.exists() else ""
    entries = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [step for step in entries if "loss" in step]


class Hosts:
    """As many as are named, with four ranks in all. The first has the list of who is there."""

    def __init__(self, folder: Path, names: tuple[str, ...]):
        self._folder, self._names = folder, names
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.agents = [self.start(name) for name in names]

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """One of them. That it is gone the others know after five seconds without a sign of life."""
        count = len(self._names)
        times = f"last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5,join_timeout={PATIENCE}"
        command = [
            ready_python.command(), "-c", AGENT,
            "--nnodes", f"{count - 1}:{count}", "--nproc-per-node", str(4 // count),
            "--max-restarts", "5", "--rdzv-id", "one", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--local-addr", "127.0.0.1",
            "--rdzv-conf", f"is_host={int(name == 'first')},{times}",
            "-m", "shardwright", "train", "run.yaml",
            *settings(**{"hooks": "[gone.py:Gone]", "plan.name": "auto"}),
        ]  # fmt: skip
        # What was planned for four ranks is found again when all are back.
        cache = str(self._folder / "cache")
        environment = ready_python.environment(**FRESH, GROUP=name, SHARDWRIGHT_CACHE=cache)
        with (self._folder / f"{name}.out").open("ab") as out:
            return subprocess.Popen(command, cwd=self._folder, stdout=out, stderr=out, env=environment)

    def lose_the_last(self) -> None:
        """The agent first: it would start its ranks once more."""
        self.wait_for("here-*", 4 // len(self._names))
        os.kill(int((self._folder / "last.pid").read_text()), signal.SIGKILL)
        assert self.agents[-1].wait(PATIENCE) == -signal.SIGKILL
        (self._folder / "killed").touch()

    def wait_for(self, files: str, count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(list(self._folder.glob(files))) < count:
            assert self.agents[0].poll() is None and time.monotonic() < deadline, self.said("first")
            time.sleep(0.05)

    def said(self, name: str) -> str:
        return (self._folder / f"{name}.out").read_text()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "names, left",
    [(("first", "last"), 2), (("first", "second", "third", "last"), 3)],
    ids=["four ranks, two, four", "four ranks, three, four"],
)
def test_a_run_goes_on_with_the_ranks_that_are_left_and_with_all_when_they_are_back(
    folder: Path, expected: dict[int, float], names: tuple[str, ...], left: int
) -> None:
    """`torchrun` cannot start fewer ranks on a host, but it can do with fewer hosts. `auto` plans anew for
    each number of ranks."""
    (folder / "gone.py").write_text(HOOK)
    hosts = Hosts(folder, names)
    try:
        hosts.lose_the_last()
        hosts.wait_for("waits", 1)
        hosts.agents[-1] = hosts.start("last")
        for name, agent in zip(names, hosts.agents, strict=True):
            assert agent.wait(PATIENCE) == 0, hosts.said(name)
    finally:
        for agent in hosts.agents:
            agent.terminate()
    steps = steps_of(folder / "steps.jsonl")
    for step in steps:
        assert step["loss"] == pytest.approx(expected[step["step"]], rel=2e-5), step
    assert {step["step"] for step in steps} == set(expected)
    ranks = [(step["step"], step["ranks"]) for step in steps]
    fewer = ranks.index((6, left))
    back = ranks.index((JOINED + 1, 4))
    assert ranks[:fewer] in ([(at, 4) for at in range(1, last)] for last in (KILLED, KILLED + 1))
    assert ranks[fewer:back] == [(at, left) for at in range(6, JOINED + 1)]
    assert ranks[back:] == [(at, 4) for at in range(JOINED + 1, STEPS + 1)]
    said = "".join(map(hosts.said, names))
    for done in (5, JOINED):
        assert f"step-{done:08d}: {done} of {STEPS} steps are done" in said


FULL = """
import resource

class Full:
    def step(self, training, measured):
        if training.step == 6:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_disk_that_fills_up_leaves_the_last_complete_checkpoint(
    folder: Path, expected: dict[int, float]
) -> None:
    """From the sixth step on no file grows beyond 8 KiB: the save at the tenth fails, and the run ends with
    the reason. What it goes on from is said."""
    (folder / "full.py").write_text(FULL)
    first = alone(folder, hooks="[full.py:Full]")
    assert first.returncode == 1 and "File too large" in first.stderr, first.stderr
    complete = [path.parent.name for path in (folder / "checkpoints").glob("step-*/.metadata")]
    assert complete == ["step-00000005"]
    rest = alone(folder)
    assert rest.returncode == 0, rest.stderr
    assert f"step-00000005: 5 of {STEPS} steps are done" in rest.stdout
    for step in steps_of(folder / "steps.jsonl"):
        assert step["loss"] == pytest.approx(expected[step["step"]], rel=1e-9), step
