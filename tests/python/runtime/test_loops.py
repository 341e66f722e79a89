"""Loops on real processes: what goes wrong in one of them ends all of them, with the reason, in seconds."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

import forked
import ready_python
from forked import PYTHON

pytestmark = pytest.mark.processes

# From the first rank's end to the last one's.
LIMIT = 30.0

LOOP = """
import atexit, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import shardwright as sw
from shardwright.runtime.communication import watch

watch.PATIENCE = 5.0
how, folder = sys.argv[1:]
if how == "steps":
    WHOLE_END = True
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


# The other rank, for so long at most.
def outlive(seconds):
    other = Path(folder, f"pid-{1 - rank}").read_text()
    deadline = time.monotonic() + seconds
    while Path("/proc", other).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


Path(folder, f"pid-{rank}").write_text(str(os.getpid()))
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
        outlive(10)
    else:
        steps(2)
elif how == "barrier":
    dist.barrier() if leaves else steps(2)
elif how == "sum or barrier":
    dist.barrier() if leaves else model.comm.tally([1], "a sum of theirs")
elif how in ("another sum", "a longer sum"):
    many = 1 if how == "another sum" else 40
    model.comm.tally([1] * many, "a sum of ours") if leaves else steps(2)
elif how == "two sums":
    model.comm.tally([1], "a sum of ours" if leaves else "a sum of theirs")
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
        outlive(15)
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


def run(how: str, folder: Path, world: int = 2) -> list[forked.Ended]:
    script = folder / "loop.py"
    script.write_text(LOOP)
    return forked.run(script, how, str(folder), world=world, folder=folder)


def in_time(ended: forked.Ended, folder: Path) -> bool:
    """Whether a rank has ended soon after the first one's departure."""
    left = [float(file.read_text()) for file in folder.glob("[0-9]")]
    return ended.time - min(left) < LIMIT


@pytest.mark.parametrize(
    ("how", "leaver", "code", "words"),
    [
        ("ends", 1, "SW0782", "rank 1 left the loop after step 3"),
        ("rank 0 ends", 0, "SW0782", "rank 0 left the loop after step 3"),
        ("destroys", 1, "SW0782", "rank 1 left the loop after step 3"),
        ("evaluates", 1, "SW0782", "rank 1 left the loop after step 3"),
        ("barrier", 1, "SW0785", "rank 1 waits outside the model after step 3 (loop.py:"),
        ("no backward", 1, "SW0785", "rank 1 waits in train_step after step 3 (loop.py:"),
        ("sum or barrier", 1, "SW0785", "rank 0 waits in a sum of theirs after step 3 (loop.py:"),
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
            if not (how.endswith("barrier") and rank == leaver):
                explained = f"error[{code}]" in ended.error and words in ended.error
                referred = f"rank {rank} ends with {code}: rank 0 says why" in ended.error
                assert explained or (rank > 0 and referred), ended.error
            assert in_time(ended, tmp_path)


@pytest.mark.parametrize(
    ("how", "first", "second"),
    [
        ("another sum", "train_step, the agreement on a call", "a sum of ours"),
        ("a longer sum", "train_step, the agreement on a call", "a sum of ours"),
        ("two sums", "a sum of theirs", "a sum of ours"),
    ],
)
def test_ranks_that_meet_in_different_places_say_so_at_once(
    how: str, first: str, second: str, tmp_path: Path
) -> None:
    explains, refers = run(how, tmp_path)
    assert "error[SW0785]: the ranks meet in different places" in explains.error
    at = r"after step 3 \(loop\.py:\d+\)"
    assert re.search(f"rank 0 waits in {first} {at}; rank 1 waits in {second} {at}\n", explains.error)
    assert refers.error == "shardwright: rank 1 ends with SW0785: rank 0 says why\n"
    assert (explains.code, refers.code) == (1, 1)


def test_a_label_out_of_range_on_one_rank(tmp_path: Path) -> None:
    others, faulty = run("bad label", tmp_path)
    assert faulty.code != 0 and "IndexError: Target 9 is out of bounds" in faulty.error
    assert others.code != 0 and "rank 1" in others.error and "Target 9 is out of bounds" in others.error
    assert in_time(others, tmp_path)


def test_an_error_that_one_rank_catches(tmp_path: Path) -> None:
    """It goes on, the others cannot: they must not wait for it."""
    others, faulty = run("bad label, caught", tmp_path)
    assert faulty.out.startswith("caught")
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
FLOAT64 = ("--dtype", "float64")


def example(file: str, *options: str, world: int = 1) -> dict[str, float]:
    """What an example prints: a number for each line."""
    with tempfile.TemporaryDirectory() as folder:
        first, *rest = forked.run(EXAMPLES / file, *FLOAT64, *options, world=world, folder=Path(folder))
    assert all(ended.code == 0 for ended in (first, *rest)), first.error
    assert not any(ended.out for ended in rest)
    return numbers(first.out)


@functools.cache
def plain(file: str, *options: str) -> dict[str, float]:
    return example(file, *options, "--plain")


def under_torchrun(file: str, *options: str, world: int) -> dict[str, float]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    done = subprocess.run(
        [ready_python.command(), *launcher, EXAMPLES / file, *FLOAT64, *options],
        env=ready_python.environment(), capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return numbers(done.stdout)


def numbers(printed: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in printed.splitlines()]
    return {words: float(number) for words, number in lines}


@pytest.mark.slow
@pytest.mark.parametrize(("world", "plan"), [(1, "replicate"), (2, "megatron"), (4, "data:2 x megatron:2")])
def test_nanogpt_equals_its_plain_loop(world: int, plan: str) -> None:
    options = ("nanogpt/train.py", "--steps", "8", "--evaluate-every", "4")
    expected = plain(*options)
    assert len(expected) == 8 + 2 * 2
    assert expected["step 7: loss"] < expected["step 0: loss"]
    run = example if world == 1 else functools.partial(under_torchrun, world=world)
    assert run(*options, "--plan", plan) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_nanogpt_goes_on_from_a_checkpoint_on_another_plan(tmp_path: Path) -> None:
    options = ("nanogpt/train.py", "--steps", "8", "--evaluate-every", "4")
    expected = plain(*options)
    options += ("--out", str(tmp_path / "saved"))
    # Stopped after six steps, of which the last two are not saved.
    first = example(*options, "--plan", "megatron", "--save-every", "4", "--stop", "6", world=2)
    rest = example(*options, "--plan", "data", "--resume", world=2)
    assert set(first) | set(rest) == set(expected) and "step 4: loss" in rest and "step 3: loss" not in rest
    assert {**first, **rest} == pytest.approx(expected, rel=1e-9)


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
    expected = plain("finetune.py")
    assert len(expected) == 8
    # Transformers takes the loss in float32.
    actual = example("finetune.py", "--plan", plan, "--inputs", inputs, world=world)
    assert actual == pytest.approx(expected, rel=1e-6)
