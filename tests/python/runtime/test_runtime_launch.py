"""Processes: a rank that dies ends the others, its own error first, and nobody is left behind."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import ready_python
import shardwright
from shardwright.errors import PlanError, RuntimeFault
from shardwright.runtime import communication, launch

pytestmark = pytest.mark.processes

PYTHON = Path(shardwright.__file__).parents[1]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users start ranks: each imports everything itself."""
    monkeypatch.setattr(communication.launch, "FRESH", multiprocessing.get_context("spawn"))


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
    time.sleep(1000)


def _double(rank: int, x: torch.Tensor) -> torch.Tensor:
    y = x * (rank + 1)
    dist.all_reduce(y)
    return y


@pytest.mark.usefixtures("fresh")
def test_the_result_of_rank_0() -> None:
    assert torch.equal(launch(_double, 2, (torch.ones(2),)), torch.full((2,), 3.0))


def test_the_error_of_the_failing_rank_comes_first() -> None:
    with pytest.raises(RuntimeFault) as caught:
        launch(_raise, 3)
    assert str(caught.value).startswith("error[SW0712]: rank 1 failed\n  why: Traceback")
    assert "ValueError: this is the cause" in str(caught.value)


def _load(rank: int, folder: str) -> list[int]:
    loader = iter(torch.utils.data.DataLoader(range(8), 2, num_workers=1))
    [worker] = multiprocessing.active_children()
    Path(folder, str(worker.pid)).touch()
    return next(loader).tolist()


def test_a_rank_may_have_loaders_with_processes_and_leaves_none(tmp_path: Path) -> None:
    assert launch(_load, 2, (str(tmp_path),)) == [0, 1]
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(workers) == 2
    deadline = time.monotonic() + 3  # a worker that nobody ends looks for its rank every five seconds
    while any(map(_lives, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_lives, workers))


def _lives(pid: int) -> bool:
    """One that has ended may still be listed, until its parent asks."""
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def _misspell(rank: int) -> None:
    shardwright.parallelize(torch.nn.Linear(2, 2), torch.ones(4, 2), plan="megatorn")


def test_an_error_of_shardwright_is_raised_as_it_is() -> None:
    with pytest.raises(PlanError) as caught:
        launch(_misspell, 2)
    assert caught.value.code == "SW0311"
    assert "_misspell" in str(caught.value.__cause__)  # where it happened


@pytest.mark.parametrize("devices", [0, -1, 99999999999, 2.0, True, "4", None])
def test_a_number_of_processes_that_cannot_be(devices: object) -> None:
    with pytest.raises(RuntimeFault, match="SW0830"):
        launch(_raise, devices)  # type: ignore[arg-type]
    with pytest.raises(RuntimeFault, match="SW0830"):
        launch(None, 2)  # type: ignore[arg-type]


def test_a_killed_rank_ends_the_others() -> None:
    start = time.monotonic()
    with pytest.raises(RuntimeFault, match=r"rank 1 failed\n  why: the process died \(killed by signal 9\)"):
        launch(_die, 3)
    assert time.monotonic() - start < 120  # far from the hours that a hang would take


@pytest.mark.slow
def test_a_time_limit_leaves_no_process_behind(tmp_path: Path) -> None:
    started: list[int] = []
    for timeout in (3, 20, 200):  # on a busy machine they take long to start
        if len(started) < 2:
            with pytest.raises(RuntimeFault, match="SW0714"):
                launch(_sleep, 2, (str(tmp_path),), timeout=timeout)
            started = [int(path.name) for path in tmp_path.iterdir()]
    assert len(started) >= 2
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def started(*words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    command, env = [ready_python.command(), *words], ready_python.environment()
    return subprocess.run(command, env=env, input=input, capture_output=True, text=True)


def _from_standard_input(code: str) -> subprocess.CompletedProcess[str]:
    """As in a notebook: no file has the functions."""
    env = {**os.environ, "PYTHONPATH": str(PYTHON)}
    return subprocess.run([sys.executable, "-"], input=code, env=env, capture_output=True, text=True)


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
    done = _from_standard_input(code)
    assert done.stdout == "1\n", done.stderr


def test_the_example_for_scripts_and_notebooks(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "starting.md"
    if not page.exists():
        pytest.skip("the tests run away from the repository")
    match = re.search(r"## Scripts and notebooks.*?```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert match is not None
    in_notebook = started("-", input=match[1])
    assert float(in_notebook.stdout) > 0, in_notebook.stderr
    script = tmp_path / "train.py"
    script.write_text(match[1])
    in_script = started(str(script))
    assert in_script.stdout == in_notebook.stdout, in_script.stderr


def test_under_torchrun_one_rank_explains_what_all_met(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    call = 'sw.parallelize(torch.nn.Linear(2, 2), torch.ones(4, 2), plan="megatorn")'
    script.write_text(f"import torch\nimport shardwright as sw\n{call}\n")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = started(*command)
    assert done.returncode != 0
    assert done.stderr.count("there is no plan named `megatorn`") == 1, done.stderr
    # torchrun ends the other as soon as the first has ended: perhaps before it says its line.
    assert done.stderr.count("rank 1 ends with SW0311: rank 0 says why") <= 1


WAITER = """
import os, sys, time, torch, torch.distributed as dist
from shardwright.runtime import TorchComm
from shardwright.runtime.communication import watch
watch.PATIENCE = 8.0
rank = int(sys.argv[1])
store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
comm = TorchComm()
comm.prepare([])
print(os.getpid(), flush=True)
time.sleep(100)  # Gloo cannot tell this rank anything
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "after"), [(signal.SIGKILL, 3), (signal.SIGSTOP, 0)])
def test_a_rank_that_dies_or_freezes_without_a_launcher_ends_the_others(how: int, after: float) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        subprocess.Popen(
            [ready_python.command(), "-c", WAITER, str(rank), str(store.port)], text=True,
            env=ready_python.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in reversed(ranks):
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            if process is ranks[1]:
                other = pid
                if not after:
                    os.kill(other, how)
        time.sleep(after)
        os.kill(other, how)
        start = time.monotonic()
        _, errors = ranks[0].communicate(timeout=90)
        assert time.monotonic() - start < 120  # far from the hours that a hang would take
        assert "rank 0 ends because of rank 1: it gives no sign of life for 8 seconds" in errors
    finally:
        for process in ranks:
            process.kill()


ENDER = """
import atexit, threading
# Called last: whoever is registered later is called before.
atexit.register(lambda: print(*(thread.name for thread in threading.enumerate())))
import torch.distributed as dist
from shardwright.runtime import TorchComm
from shardwright.runtime.communication import watch
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
watch.INTERVAL = 0.001
watch.watch(0, 1)
"""


def test_the_thread_that_watches_ends_before_the_interpreter() -> None:
    """A thread that comes back from C++ after that aborts the process: a finished job would fail."""
    env = {**os.environ, "PYTHONPATH": str(PYTHON), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, "-c", ENDER], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "MainThread\n"), done.stderr


LEAVER = """
import sys
from pathlib import Path

def threads():
    return sum("gloo" in task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir())

WHOLE_END = True
# Called last: whoever is registered later is called before, such as what is imported.
LAST.append(lambda: sys.stdout.write(f"{held} then {threads()}\\n"))
import torch, torch.distributed as dist
import torch._dynamo  # once imported it holds the group that it finds
import shardwright as sw

own = sys.argv[1] == "own"
if own:
    dist.init_process_group("gloo")
mlp = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
model = sw.parallelize(mlp, torch.ones(4, 4), plan="data:2 x megatron:2", progress=False)
model(torch.ones(4, 4)).sum().backward()
held = threads() > 0
if own:
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are read where Linux shows them")
@pytest.mark.parametrize("group", ["own", "ours"])
def test_the_threads_of_groups_end_before_the_interpreter(group: str, tmp_path: Path) -> None:
    """One that lets go of a tensor after that aborts the process; the model here still lives."""
    script = tmp_path / "train.py"
    script.write_text(LEAVER)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(script), group]
    done = started(*command)
    assert (done.returncode, done.stdout) == (0, "True then 0\n" * 4), done.stderr
