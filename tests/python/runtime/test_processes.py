"""Real processes on Gloo: whole runs equal the single device, and what happens when one dies."""

from __future__ import annotations

import ast
import errno
import multiprocessing.resource_tracker
import os
import runpy
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import forking
import ready_python
import shardwright as sw
from equality import assemble, assert_equal, reference, train
from models import MODELS
from shardwright import api
from shardwright._core import Compiled, Graph, Plan, compile, plan_names
from shardwright.capture import capture
from shardwright.runtime import ParallelModule, TorchComm, load_program
from shardwright.start import starter
from shardwright.start.compiling import Bundle, sources

pytestmark = pytest.mark.processes

WORLD = 4
NAMED = (
    "data",
    "megatron",
    "data:2 x megatron:2",
    "zero1",
    "zero3",
    "zero3:2 x megatron:2",
    "data:2 x zero2:2",
    "zero3:2 x megatron:2 x offload",
    "data:4 x offload:parameters",
)
SEEDS = range(100, 110)
# Methods that communicate nothing, and those whose first argument is what is communicated.
LOCAL = (
    "call", "grad", "grad_inputs", "grad_weights", "update", "keep", "take", "fetch", "release",
    "part_gradients",
)  # fmt: skip
VALUES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# A rank that dies ends the others within so many seconds.
LIMIT = 30.0
# So many letters has the name of a process at most.
MOST_OF_A_NAME = 15


# ---- whole runs --------------------------------------------------------------------------------


def _train_all(rank: int, bundles: dict[str, list[Bundle]], folder: str) -> None:
    """One rank of all programs of all models, one after another."""
    trained = {name: [_trained(name, bundle) for bundle in bundles[name]] for name in bundles}
    torch.save(trained, Path(folder, f"{rank}.pt"))


def _trained(name: str, bundle: Bundle) -> tuple[Any, Any]:
    module, args = MODELS[name]()
    program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
    comm = TorchComm(watch=False)
    model = ParallelModule(program, comm, sources(module, bundle.captured), bundle.captured)
    return train(model, args), model.issued


def _bundles(name: str) -> list[tuple[Bundle, Compiled]]:
    """The named plans that the model has a use for, and the random ones."""
    module, args = MODELS[name]()
    captured = capture(module, args)
    graph = Graph(captured.graph_text)
    plans = [plan for word in NAMED if (plan := _named(graph, word))]
    plans += [Plan.random(graph, WORLD, seed) for seed in SEEDS]
    bundles = []
    for plan in plans:
        made = compile(plan)
        bundle = Bundle(
            dict(made.files), made.digest, plan.name, WORLD, captured, made.proof, captured.graph_text
        )
        bundles.append((bundle, made))
    return bundles


def _named(graph: Graph, name: str) -> Plan | None:
    try:
        return Plan.named(graph, name, WORLD)
    except sw.PlanError as error:
        assert error.code == "SW0309", error  # there is nothing to split
        return None


def test_equal_to_the_single_device(tmp_path: Path) -> None:
    compiled = {name: _bundles(name) for name in MODELS}
    bundles = {name: [bundle for bundle, _ in compiled[name]] for name in MODELS}
    sw.launch(_train_all, WORLD, (bundles, str(tmp_path)), timeout=1600)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]
    for name in MODELS:
        _compare(name, compiled[name], [trained[name] for trained in ranks])


def _sums(rank: int, folder: str) -> None:
    comm = TorchComm(watch=False)
    groups = [tuple(range(WORLD)), (2, 0, 3), (0, 1)]
    comm.prepare([[group] for group in groups])
    sums = []
    for group in groups:
        if rank not in group:
            continue
        for dtype in (torch.float32, torch.bfloat16):
            # Several at once, as a step has them.
            rows = [_rows(rank, at, len(group)).to(dtype) for at in range(3)]
            outs = [torch.empty_like(it[0]) for it in rows]
            works = [comm.reduce_scatter(out, it, group) for out, it in zip(outs, rows, strict=True)]
            for work in works:
                work.wait()
            sums += [(group, dtype, at, out) for at, out in enumerate(outs)]
    torch.save(sums, Path(folder, f"{rank}.pt"))


def _rows(rank: int, at: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * rank + at)
    return torch.randn(count, 1000, generator=generator)


def test_rows_are_summed_in_the_order_of_their_group(tmp_path: Path) -> None:
    """To the last bit, and in a narrow type as if it were wide."""
    sw.launch(_sums, WORLD, (str(tmp_path),), timeout=200)
    looked = 0
    for rank in range(WORLD):
        for group, dtype, at, out in torch.load(tmp_path / f"{rank}.pt", weights_only=False):
            first, *rest = [_rows(other, at, len(group)).to(dtype)[group.index(rank)] for other in group]
            expected = first.float()
            for row in rest:
                expected = expected + row.float()
            assert torch.equal(out, expected.to(dtype)), (rank, group, dtype, at)
            looked += 1
    assert looked == 6 * (4 + 3 + 2)


def _compare(name: str, compiled: list[tuple[Bundle, Compiled]], ranks: list[Any]) -> None:
    assert len(compiled) >= len(SEEDS) + 2
    expected = reference(*MODELS[name]())
    for at, (bundle, made) in enumerate(compiled):
        assert_equal(assemble([of_rank[at][0] for of_rank in ranks]), expected, f"{name}, {bundle.plan}")
        for rank, of_rank in enumerate(ranks):
            issued = [(kind, number) for kind, number, _ in of_rank[at][1]]
            assert issued == _listed(bundle, rank), f"{name}, {bundle.plan}, rank {rank}"
            assert Counter(kind for kind, _ in issued) == _counted(made, rank)


def _listed(bundle: Bundle, rank: int) -> list[tuple[str, int]]:
    """What the emitted code of a rank says that it communicates: kind, and grouping or table, in order."""
    program = load_program(bundle.files)
    role = program.role(rank)
    functions = {
        node.name: node
        for node in ast.parse(bundle.files[role.file]).body
        if isinstance(node, ast.FunctionDef)
    }
    calls = []
    for name in [name for name in ("begin", "forward", "backward") if name in functions]:
        for node, turns in _executed(functions[name].body, {}):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("run."):
                kind = ast.unparse(node.func).removeprefix("run.")
                if kind not in LOCAL:
                    place = 1 if kind in VALUES else 0
                    calls.append((kind, eval(ast.unparse(node.args[place]), dict(turns))))
    # What a rank does with its own host is no communication.
    alone = ("gather", "scatter_gradients")
    return [it for it in calls if it[0] not in alone or len(program.group_of(it[1], rank)) > 1]


def _executed(body: Sequence[ast.stmt], turns: dict[str, int]) -> Iterator[tuple[ast.AST, dict[str, int]]]:
    """What runs, in order, in the last micro-batch of a step; with the counters of loops."""
    for statement in body:
        if isinstance(statement, ast.For):
            for value in eval(ast.unparse(statement.iter), dict(turns)):
                yield from _executed(statement.body, {**turns, ast.unparse(statement.target): value})
        elif isinstance(statement, ast.If):
            if eval(ast.unparse(statement.test), {"last": True, **turns}):
                yield from _executed(statement.body, turns)
        else:
            yield from ((node, turns) for node in ast.walk(statement))


def _counted(made: Compiled, rank: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for key, count in made.counts[rank].items():
        counts[key.split()[1]] += count
    return counts


# ---- ranks that die ----------------------------------------------------------------------------


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A word in the environment of all processes that a test starts, or the name of one that is forked off:
    none may be left."""
    # These live as long as this process, and are no ranks.
    multiprocessing.resource_tracker.ensure_running()
    ready_python.command(), ready_python.environment()
    mark = f"{forking.NAME}={uuid.uuid4().hex[:MOST_OF_A_NAME]}"
    monkeypatch.setenv(*mark.split("="))
    yield mark
    assert _settled(mark) == []


def _settled(mark: str) -> list[str]:
    """The processes with this mark; those that are just ending get a moment."""
    end = time.monotonic() + 3
    while (left := _alive(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def _alive(mark: str) -> list[str]:
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            named = (folder / "comm").read_text() == f"{mark.partition('=')[2]}\n"
            if named or mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                commands.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return commands


def _seen(_: int, mark: str) -> int:
    dist.barrier()
    return len(_alive(mark))


def test_ranks_are_seen_while_they_live(marked: str) -> None:
    assert sw.launch(_seen, 2, (marked,), timeout=200) >= 2


def _die_in_a_step(rank: int, plan: str, message: str, how: str, folder: str) -> None:
    module, args = MODELS["mlp"]()
    model = sw.parallelize(module, args, plan=plan)
    model.train_step(args)
    if rank == 2:
        setattr(model.comm, message, lambda *_: _die(how, folder))
    model.train_step(args)


def _die(how: str, folder: str) -> Any:
    Path(folder, "died").write_text(str(time.time()))
    if how == "raises":
        raise ValueError("this is the cause")
    if how == "exits":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "begin", "end"),
    [
        ("raises", "Traceback (most recent call last):", "ValueError: this is the cause"),
        ("exits", "the process died (exit code 7)", "the process died (exit code 7)"),
        ("killed", "the process died (killed by signal 9)", "the process died (killed by signal 9)"),
        ("in a gather", "the process died (killed by signal 9)", "the process died (killed by signal 9)"),
        ("in a scatter", "the process died (killed by signal 9)", "the process died (killed by signal 9)"),
    ],
)
def test_a_rank_that_dies_in_a_step(how: str, begin: str, end: str, tmp_path: Path, marked: str) -> None:
    messages = {"in a gather": ("zero3", "all_gather"), "in a scatter": ("zero3", "reduce_scatter")}
    plan, message = messages.get(how, ("data:2 x megatron:2", "all_reduce"))
    with pytest.raises(sw.RuntimeFault) as caught:
        sw.launch(_die_in_a_step, WORLD, (plan, message, how, str(tmp_path)), timeout=200)
    assert time.time() - float((tmp_path / "died").read_text()) < LIMIT
    assert caught.value.what == "rank 2 failed"
    assert caught.value.why is not None and caught.value.why.startswith(begin)
    first, _, others = caught.value.why.partition("\n(then also failed: ranks ")
    assert first.endswith(end)
    assert set(others.rstrip(")").split(", ")) <= {"", "0", "1", "3"}


def _ask_for_too_much(rank: int, folder: str) -> None:
    module, args = MODELS["mlp"]()
    model = sw.parallelize(module, args, plan="data:2 x megatron:2 x offload")
    model.train_step(args)
    if rank == 2:
        Path(folder, "died").write_text(str(time.time()))
        host = model.variants.first.worker.host
        host.empty = lambda _: torch.empty(1 << 60, dtype=torch.uint8)  # type: ignore[method-assign]
    model.train_step(args)


def test_a_host_without_room_ends_all_ranks(tmp_path: Path, marked: str) -> None:
    with pytest.raises(sw.RuntimeFault) as caught:
        sw.launch(_ask_for_too_much, WORLD, (str(tmp_path),), timeout=200)
    assert time.time() - float((tmp_path / "died").read_text()) < LIMIT
    assert caught.value.code == "SW0774" and "can't allocate memory" in str(caught.value.why)


PARENT = """
import sys, time
from pathlib import Path
import shardwright as sw

def rank(rank, folder):
    Path(folder, str(rank)).touch()
    time.sleep(100)

if __name__ == "__main__":
    sw.launch(rank, 2, (sys.argv[1],))
"""


def test_a_launcher_that_is_killed_leaves_no_ranks(tmp_path: Path, marked: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    started = tmp_path / "started"
    started.mkdir()
    process = subprocess.Popen([ready_python.command(), script, started], env=ready_python.environment())
    _wait_for(lambda: len(list(started.iterdir())) == 2, 60)
    process.kill()
    process.wait()
    _wait_for(lambda: not _alive(marked), LIMIT)


def _wait_for(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.1)


# ---- torchrun ----------------------------------------------------------------------------------

TRAIN = """
import os, signal, sys, time
from pathlib import Path
import torch
from torch import nn
import shardwright as sw


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x, y):
        return (self.down(torch.relu(self.up(x))) - y).square().mean()


def build():
    torch.manual_seed(0)
    return Net().double()


def batches():
    torch.manual_seed(1)
    return [tuple(torch.randn(4, 8, dtype=torch.float64) for _ in range(2)) for _ in range(3)]


if __name__ == "__main__":
    plan = "data:2 x megatron:2" if os.environ["WORLD_SIZE"] == "4" else "megatron"
    model = sw.parallelize(build(), batches()[0], plan=plan)
    adamw = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
    for step, batch in enumerate(batches()):
        if step == 1 and int(os.environ["RANK"]) == 1 and sys.argv[1] != "good":
            Path(sys.argv[2]).write_text(str(time.time()))
            if sys.argv[1] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this is the cause")
        loss = model.train_step(batch)
        adamw.step()
        adamw.zero_grad()
        if int(os.environ["RANK"]) == 0:
            print("loss", repr(loss.item()), flush=True)
"""


def _torchrun(folder: Path, how: str, world: int) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(TRAIN)
    return subprocess.run(
        [
            ready_python.command(), "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", str(world), script, how, folder / "died",
        ],
        env=ready_python.environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def test_torchrun(tmp_path: Path, marked: str) -> None:
    done = _torchrun(tmp_path, "good", WORLD)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss")]
    script = runpy.run_path(str(tmp_path / "train.py"))
    model = script["build"]()
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2)
    expected = []
    for batch in script["batches"]():
        adamw.zero_grad()
        loss = model(*batch)
        loss.backward()
        adamw.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("how", ["raises", "killed"])
def test_a_rank_that_dies_under_torchrun(how: str, tmp_path: Path, marked: str) -> None:
    done = _torchrun(tmp_path, how, 2)
    assert time.time() - float((tmp_path / "died").read_text()) < LIMIT
    assert done.returncode != 0
    if how == "raises":
        cause = done.stderr.index("ValueError: this is the cause")
        assert "Connection closed by peer" not in done.stderr[:cause]
        assert "ends because of" not in done.stderr[:cause]
    else:
        assert "Signal 9 (SIGKILL) received by PID" in done.stderr


# ---- several things in one group of processes --------------------------------------------------


def _side_by_side(rank: int, folder: str) -> None:
    said = [_refusal(rank, kind) for kind in ("plan", "bug", "pickle")]
    Path(folder, f"{rank}.txt").write_text("\n\n".join(said))
    one, first = MODELS["mlp"]()
    two, second = MODELS["gpt"]()
    ours = [sw.parallelize(one, first, plan="data"), sw.parallelize(two, second, plan="megatron")]
    torch.save(_interleaved(ours, [first, second]), Path(folder, f"{rank}.pt"))
    dist.barrier()


def _refusal(rank: int, kind: str) -> str:
    """What a rank says where rank 0 cannot compile."""
    module, args = MODELS["mlp"]()
    before = vars(starter)["captured_model"]
    if rank == 0 and kind == "bug":
        vars(starter)["captured_model"] = _divide_by_zero
    if kind == "pickle":
        module.forward = _with_odd_default(module)
    try:
        sw.parallelize(module, args, plan="nonsense" if kind == "plan" else "data")
    except Exception as error:
        return str(error)
    finally:
        vars(starter)["captured_model"] = before
    return "no error"


def _divide_by_zero(*_args: Any, **_kwargs: Any) -> Any:
    raise ZeroDivisionError("a mistake")


def _with_odd_default(module: Any) -> Any:
    original = type(module).forward

    def forward(x: torch.Tensor, target: torch.Tensor, odd: Any = lambda: 1) -> torch.Tensor:
        return original(module, x, target)

    return forward


def _interleaved(models: list[Any], inputs: list[Any]) -> list[torch.Tensor]:
    """Two steps of two models, forward of both before backward of both."""
    optimizers = [sw.optimizer(model, torch.optim.AdamW, lr=1e-2) for model in models]
    losses = []
    for _ in range(2):
        step_losses = [_loss(model(*args)) for model, args in zip(models, inputs, strict=True)]
        for loss, adamw in reversed(list(zip(step_losses, optimizers, strict=True))):
            adamw.zero_grad()
            loss.backward()
            adamw.step()
        losses += [loss.detach() for loss in step_losses]
    return losses


def _loss(outputs: Any) -> torch.Tensor:
    return outputs[-1] if isinstance(outputs, tuple) else outputs


REFUSALS = (
    "error[SW0311]: there is no plan named `nonsense`\n"
    "  why: it is neither a named plan nor the path of a plan file\n"
    f"  help: use one of {', '.join(f'`{name}`' for name in plan_names())}, a product such as"
    " `data:2 x megatron:2`, or a plan file",
    "error[SW0724]: rank 0 failed at what all ranks wait for\n"
    "  why: ZeroDivisionError: a mistake\n"
    "  help: look at what rank 0 itself says",
    "error[SW0726]: the program cannot be handed to the other ranks\n"
    "  why: AttributeError: Can't pickle local object '_with_odd_default.<locals>.<lambda>'\n"
    "  help: let defaults of `forward`, and classes in its arguments and result, be importable",
)


def test_errors_of_rank_0_and_two_models_in_one_group(tmp_path: Path, marked: str) -> None:
    sw.launch(_side_by_side, WORLD, (str(tmp_path),), timeout=200)
    for rank in range(WORLD):
        said = (tmp_path / f"{rank}.txt").read_text().split("\n\n")
        expected = [REFUSALS[0], REFUSALS[1] if rank else "a mistake", REFUSALS[2]]
        assert said == expected, f"rank {rank}"
    inputs = [MODELS["mlp"]()[1], MODELS["gpt"]()[1]]
    models = [_Plain(MODELS["mlp"]()[0]), _Plain(MODELS["gpt"]()[0])]
    expected_losses = _interleaved_alone(models, inputs)
    for rank in range(WORLD):
        losses = torch.load(tmp_path / f"{rank}.pt")
        assert torch.allclose(torch.stack(losses), torch.stack(expected_losses), rtol=1e-12, atol=0)


class _Plain(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        return self.inner(*args)


def _interleaved_alone(models: list[Any], inputs: list[Any]) -> list[torch.Tensor]:
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in models]
    losses = []
    for _ in range(2):
        step_losses = [_loss(model(*args)) for model, args in zip(models, inputs, strict=True)]
        for loss, adamw in zip(step_losses, optimizers, strict=True):
            adamw.zero_grad()
            loss.backward()
            adamw.step()
        losses += [loss.detach() for loss in step_losses]
    return losses


# ---- saving ------------------------------------------------------------------------------------

OLD = {"ranks_0.py": "old = 1\n", "program.json": '{"roles": [{"file": "ranks_0.py"}]}', "graph.txt": "old"}
NEW = {"ranks_0.py": "new = 1\n", "ranks_1.py": "new = 2\n", "program.json": "{}", "graph.txt": "new"}

KILLED = """
import os, signal, sys
from pathlib import Path
import shardwright.api as api

write, count = Path.write_text, 0

def dying(path, *args, **kwargs):
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(path, *args, **kwargs)

Path.write_text = dying
api.write_files(eval(sys.argv[2]), sys.argv[1])
"""


def _contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_a_program_replaces_another(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "program"
    api.write_files(OLD, folder)
    (folder / "__pycache__").mkdir()
    assert api.write_files(NEW, folder) == folder
    assert _contents(folder) == NEW
    assert [path.name for path in folder.parent.iterdir()] == ["program"]


def test_a_process_that_is_killed_while_it_saves(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    api.write_files(OLD, folder)
    command = [ready_python.command(), "-c", KILLED, str(folder), repr(NEW)]
    assert subprocess.run(command, env=ready_python.environment()).returncode == -signal.SIGKILL
    assert _contents(folder) == OLD
    api.write_files(NEW, folder)
    assert _contents(folder) == NEW


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "program"
    api.write_files(OLD, folder)
    write = Path.write_text

    def failing(path: Path, *args: Any, **kwargs: Any) -> int:
        if path.name == "ranks_1.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises(sw.RuntimeFault) as caught:
        api.write_files(NEW, folder)
    assert str(caught.value).replace(str(tmp_path), "TMP") == (
        "error[SW0725]: the program cannot be written to TMP/program\n"
        "  why: No space left on device\n"
        "  help: name a folder on a disk that can be written and has room; what was there is as it was"
    )
    assert _contents(folder) == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["program"]


@pytest.mark.parametrize("rename", [0, 1])
def test_a_folder_that_cannot_be_renamed(
    rename: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "program"
    api.write_files(OLD, folder)
    original, count = Path.rename, 0

    def failing(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == rename + 1:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(sw.RuntimeFault, match="SW0725"):
        api.write_files(NEW, folder)
    assert _contents(folder) == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["program"]


@pytest.mark.parametrize(
    ("things", "named"),
    [
        ({"thesis.tex": "work"}, "thesis.tex"),
        ({**OLD, "notes.md": "work"}, "notes.md"),
        ({**OLD, "mine.py": "work"}, "mine.py"),
        ({"program.json": '{"name": "another tool"}', "index.js": "work"}, "index.js, program.json"),
    ],
)
def test_a_folder_that_holds_other_things(things: dict[str, str], named: str, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for name, text in things.items():
        (folder / name).write_text(text)
    with pytest.raises(sw.RuntimeFault) as caught:
        api.write_files(NEW, folder)
    assert str(caught.value).replace(str(tmp_path), "TMP") == (
        "error[SW0723]: TMP/work is not overwritten\n"
        f"  why: it holds something else than an emitted program: {named}\n"
        "  help: name a new or empty folder"
    )
    assert _contents(folder) == things


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("work")
    with pytest.raises(sw.RuntimeFault) as caught:
        api.write_files(NEW, tmp_path / "file")
    assert str(caught.value).replace(str(tmp_path), "TMP") == (
        "error[SW0725]: the program cannot be written to TMP/file\n"
        "  why: Not a directory: TMP/file\n"
        "  help: name a folder on a disk that can be written and has room; what was there is as it was"
    )
    assert (tmp_path / "file").read_text() == "work"
