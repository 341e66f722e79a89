"""The files of `examples/launch`: what can be held of them without a cluster."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

import ready_python

pytest.importorskip("yaml", reason="PyYAML is not installed")

EXAMPLES = Path(__file__).parents[3] / "examples"
LAUNCH = EXAMPLES / "launch"
SHORT = ["--set", "steps=4", "--set", "evaluation.every=1000000"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in (*(EXAMPLES / "run_file").iterdir(), *LAUNCH.iterdir()):
        shutil.copy(file, tmp_path)
    return tmp_path


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def slurm(folder: Path, task: int, job: int, *more: str) -> subprocess.Popen[str]:
    """A task of a step of two nodes, as `srun` starts it."""
    said = {
        "SLURM_STEP_NUM_TASKS": 2,
        "SLURM_PROCID": task,
        "SLURM_LOCALID": 0,
        "SLURM_NODEID": task,
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": 0,
        "MASTER_PORT": job,
    }
    return subprocess.Popen(
        [ready_python.command(), "-m", "shardwright", "train", "run.yaml", *more],
        cwd=folder,
        env={**ready_python.environment(), **{name: str(value) for name, value in said.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.processes
@pytest.mark.slow
def test_a_job_of_slurm_saves_when_it_is_told_and_goes_on(folder: Path) -> None:
    """One task alone is told, as when Slurm ends a job; both end with 75, and the job begins anew."""
    long = ["--set", "steps=100000", "--set", "evaluation.every=1000000", "--set", "log.every=1"]
    port = free_port()
    tasks = [slurm(folder, task, port, *long) for task in (0, 1)]
    steps = folder / "steps.jsonl"
    deadline = time.monotonic() + 200
    while not steps.is_file() or not steps.read_text():
        assert time.monotonic() < deadline and all(task.poll() is None for task in tasks)
        time.sleep(0.05)
    tasks[1].send_signal(signal.SIGUSR1)
    said = [task.communicate(timeout=120) for task in tasks]
    assert [task.returncode for task in tasks] == [75, 75], said
    [saved] = (folder / "checkpoints").glob("step-*/.metadata")
    done = int(saved.parent.name[5:])
    port = free_port()
    rest = ["--set", f"steps={done + 2}", "--set", "evaluation.every=1000000"]
    tasks = [slurm(folder, task, port, *rest) for task in (0, 1)]
    said = [task.communicate(timeout=200) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert f"{done} of {done + 2} steps are done" in said[0][0]


@pytest.mark.processes
@pytest.mark.slow
def test_two_launchers_meet(folder: Path) -> None:
    env = {
        **ready_python.environment(),
        "FIRST": "127.0.0.1",
        "PORT": str(free_port()),
        "RANKS": "1",
        "RESTARTS": "0",
    }
    env["PATH"] = f"{Path(ready_python.command()).parent}{os.pathsep}{env['PATH']}"
    hosts = [
        subprocess.Popen(
            ["sh", "two_hosts.sh", *SHORT], cwd=folder, env=env, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [host.communicate(timeout=240) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert sum("step 1: loss" in out for out, _ in said) == 1


def test_the_other_files_can_be_read() -> None:
    import yaml

    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    for script in ("slurm.sbatch", "two_hosts.sh"):
        subprocess.run(["bash", "-n", LAUNCH / script], check=True)
