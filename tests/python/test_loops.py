"""Loops on real processes: what goes wrong in one of them ends all of them, with the reason, in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import shardwright as sw

pytestmark = pytest.mark.processes

PYTHON = Path(sw.__file__).parents[1]
# From the first rank's end to the last one's.
LIMIT = 30.0

LOOP = """
import atexit, sys, time
import torch, torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import shardwright as sw
from shardwright.runtime.communication import watch

watch.PATIENCE = 5.0
how, folder = sys.argv[1:]
if how == "steps":
    atexit.register(lambda: print("a group" if dist.is_initialized() else "no group"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, labels):
        return F.cross_entropy(self.head(torch.relu(self.body(x))), labels)


torch.manual_seed(0)
model, x, labels = Net(), torch.randn(6, 8), torch.arange(6) % 4
model = sw.parallelize(model, (x, labels), plan="data")
optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
rank = dist.get_rank()


def steps(count):
    for _ in range(count):
        model.train_step((x, labels))
        optimizer.step()
        optimizer.zero_grad()


def away():
    open(f"{folder}/{rank}", "w").write(str(time.time()))


steps(3)
leaves = rank == (0 if how == "rank 0 ends" else 1)
if leaves:
    away()
if how == "evaluates":
    steps(2) if not leaves else model.eval()(x, labels)
elif how in ("ends", "rank 0 ends"):
    steps(0 if leaves else 2)
elif how == "destroys":
    if leaves:
        dist.destroy_process_group()
        time.sleep(10)
    else:
        steps(2)
elif how == "barrier":
    dist.barrier() if leaves else steps(2)
elif how == "no backward":
    loss = model(x, labels)
    if not leaves:
        loss.backward()
    steps(2)
elif how == "bad label":
    labels[3] = 9
    steps(1)
elif how == "bad label, caught":
    labels[3] = 9
    try:
        steps(1)
    except IndexError:
        print("caught", flush=True)
        time.sleep(15)
elif how == "backward twice":
    loss = model(x, labels)
    loss.backward()
    try:
        loss.backward()
    except sw.RuntimeFault as error:
        print(error.code, flush=True)
    steps(1)
elif how == "all refuse":
    try:
        model.train_step((x[:, :7] if leaves else x, labels))
    except sw.RuntimeFault as error:
        print(error.code, flush=True)
    steps(1)
print("done", flush=True)
"""


@dataclass
class Ended:
    """How a rank's process ended, and how long after the first one's departure."""

    code: int
    out: str
    error: str
    seconds: float


def run(how: str, folder: Path, world: int = 2) -> list[Ended]:
    """Each rank by itself: nobody ends the others, as a launcher would."""
    script = folder / "loop.py"
    script.write_text(LOOP)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        **os.environ, "PYTHONPATH": str(PYTHON), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(world),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, script, how, folder],
            env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        return [_ended(process, folder) for process in started]
    finally:
        for process in started:
            process.kill()


def _ended(process: subprocess.Popen[str], folder: Path) -> Ended:
    out, error = process.communicate(timeout=300)
    left = [float(file.read_text()) for file in folder.glob("[0-9]")]
    return Ended(process.returncode, out, error, time.time() - min(left, default=time.time()))


@pytest.mark.parametrize(
    ("how", "leaver", "code", "words"),
    [
        ("ends", 1, "SW0782", "rank 1 left the loop after step 3"),
        ("rank 0 ends", 0, "SW0782", "rank 0 left the loop after step 3"),
        ("destroys", 1, "SW0782", "rank 1 left the loop after step 3"),
        ("evaluates", 1, "SW0782", "rank 1 left the loop after step 3"),
        ("barrier", 1, "SW0785", "rank 1 waits outside of the model after step 3 (loop.py:"),
        ("no backward", 1, "SW0785", "rank 1 waits in train_step after step 3 (loop.py:"),
    ],
)
def test_a_rank_that_leaves_the_loop(how: str, leaver: int, code: str, words: str, tmp_path: Path) -> None:
    ranks = run(how, tmp_path, world=3 if how == "ends" else 2)
    for rank, ended in enumerate(ranks):
        if rank == leaver and how in ("ends", "rank 0 ends", "destroys"):
            assert (ended.code, ended.out) == (0, "done\n"), ended.error
        else:
            assert ended.code != 0 and "done" not in ended.out
            # Whoever waits in a call of PyTorch may hear first that the other rank has gone.
            if not (how == "barrier" and rank == leaver):
                explained = f"error[{code}]" in ended.error and words in ended.error
                referred = f"rank {rank} ends of what rank 0 explains: {code}" in ended.error
                assert explained or (rank > 0 and referred), ended.error
            assert ended.seconds < LIMIT


def test_a_label_out_of_range_on_one_rank(tmp_path: Path) -> None:
    others, own = run("bad label", tmp_path)
    assert own.code != 0 and "IndexError: Target 9 is out of bounds" in own.error
    assert others.code != 0 and "rank 1" in others.error and "Target 9 is out of bounds" in others.error
    assert others.seconds < LIMIT


def test_an_error_that_one_rank_catches(tmp_path: Path) -> None:
    """It goes on, the others cannot: they must not wait for it."""
    others, own = run("bad label, caught", tmp_path)
    assert own.out.startswith("caught")
    assert others.code != 0 and "rank 1" in others.error and "Target 9 is out of bounds" in others.error


@pytest.mark.parametrize(("how", "code"), [("backward twice", "SW0709"), ("all refuse", "SW0781")])
def test_what_all_ranks_refuse_alike_may_be_caught(how: str, code: str, tmp_path: Path) -> None:
    for ended in run(how, tmp_path):
        assert (ended.code, ended.out.split()) == (0, [code, "done"]), ended.error


def test_a_group_that_nobody_made_is_taken_down(tmp_path: Path) -> None:
    """Else a thread of it may outlive the interpreter, which aborts a process that has done all it had to."""
    for ended in run("steps", tmp_path):
        assert (ended.code, ended.out.split("\n")) == (0, ["done", "no group", ""]), ended.error


# ---- the examples ------------------------------------------------------------------------------

EXAMPLES = PYTHON.parent / "examples"


def example(file: str, *options: str, world: int = 1) -> dict[str, float]:
    """What an example prints: a number for each line."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    done = subprocess.run(
        [sys.executable, *(launcher if world > 1 else []), EXAMPLES / file, "--dtype", "float64", *options],
        env={
            **os.environ, "PYTHONPATH": str(PYTHON), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        },
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    return {words: float(number) for words, number in lines}


@pytest.mark.slow
@pytest.mark.parametrize(("world", "plan"), [(1, "replicate"), (2, "megatron"), (4, "data:2 x megatron:2")])
def test_nanogpt_equals_its_plain_loop(world: int, plan: str) -> None:
    options = ("nanogpt/train.py", "--steps", "8", "--evaluate-every", "4")
    plain = example(*options, "--plain")
    assert len(plain) == 8 + 2 * 2
    assert plain["step 7: loss"] < plain["step 0: loss"]
    assert example(*options, "--plan", plan, world=world) == pytest.approx(plain, rel=1e-9)


@pytest.mark.slow
def test_nanogpt_goes_on_from_a_checkpoint_on_another_plan(tmp_path: Path) -> None:
    options = ("nanogpt/train.py", "--steps", "8", "--evaluate-every", "4", "--out", str(tmp_path / "saved"))
    plain = example(*options, "--plain")
    # Stopped after six steps, of which the last two are not saved.
    first = example(*options, "--plan", "megatron", "--save-every", "4", "--stop", "6", world=2)
    rest = example(*options, "--plan", "data", "--resume", world=2)
    assert set(first) | set(rest) == set(plain) and "step 4: loss" in rest and "step 3: loss" not in rest
    assert {**first, **rest} == pytest.approx(plain, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "plan", "inputs"),
    [
        (1, "replicate", "global"),
        (2, "data", "local"),
        (4, "data:2 x megatron:2", "local"),
        (2, "megatron", "global"),
    ],
)
def test_a_fine_tune_equals_its_plain_loop(world: int, plan: str, inputs: str) -> None:
    plain = example("finetune.py", "--plain")
    assert len(plain) == 8
    # Transformers takes the loss in float32.
    found = example("finetune.py", "--plan", plan, "--inputs", inputs, world=world)
    assert found == pytest.approx(plain, rel=1e-6)
