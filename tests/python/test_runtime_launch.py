"""Processes: a rank that dies ends the others, its own error first, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import shardwright
from shardwright.errors import RuntimeFault
from shardwright.runtime import launch

pytestmark = pytest.mark.processes

PYTHON = Path(shardwright.__file__).parents[1]


def _raise(rank: int) -> None:
    if rank == 1:
        raise ValueError("this is the cause")
    dist.barrier()


def _die(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _sleep(rank: int, folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(100)


def _double(rank: int, x: torch.Tensor) -> torch.Tensor:
    y = x * (rank + 1)
    dist.all_reduce(y)
    return y


def test_the_result_of_rank_0() -> None:
    assert torch.equal(launch(_double, 2, (torch.ones(2),)), torch.full((2,), 3.0))


def test_the_error_of_the_failing_rank_comes_first() -> None:
    with pytest.raises(RuntimeFault) as caught:
        launch(_raise, 3)
    assert str(caught.value).startswith("error[SW0712]: rank 1 failed\n  why: Traceback")
    assert "ValueError: this is the cause" in str(caught.value)


def test_a_killed_rank_ends_the_others() -> None:
    start = time.monotonic()
    with pytest.raises(RuntimeFault, match=r"rank 1 failed\n  why: the process died \(killed by signal 9\)"):
        launch(_die, 3)
    assert time.monotonic() - start < 120  # far from the hours that a hang would take


@pytest.mark.slow
def test_a_time_limit_leaves_no_process_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match="SW0714"):
        launch(_sleep, 2, (str(tmp_path),), timeout=30)
    started = [int(path.name) for path in tmp_path.iterdir()]
    assert len(started) == 2
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def test_a_function_of_standard_input() -> None:
    code = "\n".join(
        [
            "import torch",
            "from shardwright.runtime import launch",
            "x = torch.ones(300, 300, requires_grad=True)",
            "(x @ x).sum().backward()",
            "def f(rank): return rank + int((x @ x).sum().sign())",
            "print(launch(f, 2))",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-"],
        input=code,
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "1\n", done.stderr


WAITER = """
import sys, time, torch, torch.distributed as dist
from shardwright.runtime import TorchComm
rank = int(sys.argv[1])
store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
comm = TorchComm()
comm.prepare([])
print("ready", flush=True)
time.sleep(100)  # Gloo cannot tell this rank anything
"""


@pytest.mark.slow
def test_a_rank_that_dies_without_a_launcher_ends_the_others() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {**os.environ, "PYTHONPATH": str(PYTHON), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", WAITER, str(rank), str(store.port)], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        time.sleep(3)
        ranks[1].kill()
        start = time.monotonic()
        _, errors = ranks[0].communicate(timeout=40)
        assert time.monotonic() - start < 120  # far from the hours that a hang would take
        assert "rank 0 ends because of rank 1: no sign of life for 20 seconds" in errors
    finally:
        for process in ranks:
            process.kill()
