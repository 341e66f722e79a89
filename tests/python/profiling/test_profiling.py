"""`shardwright profile`: what it writes is a cluster, with figures of this machine, and is for it."""

from __future__ import annotations

import itertools
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import models
import ready_python
import shardwright as sw
from shardwright._core import Graph, Plan, cluster_devices, cluster_origin, compile, simulate_step
from shardwright.capture import capture
from shardwright.cli import main
from shardwright.profiling import clock, measuring, messages, operators, overhead
from shardwright.profiling.measuring import profile_joined
from shardwright.profiling.operators import KINDS, Kind
from shardwright.profiling.origin import device_here, require_from_here
from shardwright.profiling.overhead import Overhead
from shardwright.runtime import run_local
from shardwright.runtime.communication.launch import threads_of

_MEASURED = measuring._measured


def _quickly(rank: int, *counts: int) -> measuring.Measured:
    """All that is measured, in small sizes and seldom: the figures do not matter."""
    clock.LASTS, clock.BATCHES = 1e-4, 1
    overhead.STEPS = overhead.LONG_STEPS = 4
    messages.SIZES = messages.SIZES[:2]
    operators.ENOUGH = dict.fromkeys(operators.ENOUGH, 1 << 16)
    operators.KINDS[:] = [replace(kind, sizes=kind.sizes[:2]) for kind in operators.KINDS]
    return _MEASURED(rank, *counts)


@pytest.mark.processes
def test_the_devices_here_are_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_measured", _quickly)
    path = tmp_path / "here.toml"
    assert main(("profile", "--devices", "2", "-o", str(path))) == 0
    text = path.read_text()
    assert capsys.readouterr().out == text
    assert cluster_devices("here", text) == 2
    assert cluster_origin("here", text) == (device_here("cpu"), torch.__version__, threads_of(2))
    for kind in (*KINDS, "copies", "optimizer"):
        assert f'kind = "{kind if isinstance(kind, str) else kind.name}"' in text
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "message"):
        assert f'kind = "{kind}"\ndevices = 2' in text
    graph = str(Path(__file__).parents[1] / "golden" / "gpt.graph")
    assert main(("simulate", graph, "--devices", "2", "--cluster", str(path))) == 0
    assert "a step takes" in capsys.readouterr().out


_OF_FEW = """
import runpy
from shardwright.profiling import clock, operators, overhead

clock.LASTS, clock.BATCHES = 1e-4, 1
overhead.STEPS = overhead.LONG_STEPS = 4
operators.KINDS[:] = operators.KINDS[2:4]
runpy.run_module("shardwright", run_name="__main__")
"""


@pytest.mark.processes
def test_processes_of_torchrun_measure_themselves(tmp_path: Path) -> None:
    path, script = tmp_path / "here.toml", tmp_path / "few.py"
    # Of two kinds of operators; the test before this one measures all.
    script.write_text(_OF_FEW)
    started = "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    command = [ready_python.command(), "-m", *started, str(script), "profile", "-o", str(path)]
    shown = subprocess.run(
        command, env=ready_python.environment(), capture_output=True, text=True, timeout=300, check=True
    ).stdout
    text = path.read_text()
    assert shown == text
    assert cluster_devices("here", text) == 2
    assert cluster_origin("here", text) == (device_here("cpu"), torch.__version__, threads_of(2))


def test_machines_of_several_processes_are_not_measured_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(sw.ClusterError, match="SW0927"):
        run_local(4, lambda _, comm: profile_joined(comm))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_operators_are_what_their_graphs_say(kind: Kind, dtype: str) -> None:
    on_gpu = kind.sizes_on(torch.device("cuda"))
    assert len(on_gpu) > len(kind.sizes_on(torch.device("cpu")))
    sizes = [operators.effort(kind, dtype, sizes) for sizes in on_gpu]
    assert all(a < b for way in zip(*sizes, strict=True) for a, b in itertools.pairwise(way))
    given = [
        torch.randint(below, shape) if below else torch.randn(shape).to(operators.DTYPES[dtype])
        for shape, below in kind.shapes(kind.sizes[0])
    ]
    captured = capture(_Calls(kind), tuple(given)).graph_text
    [line] = [line for line in captured.splitlines() if line.startswith("op ")]
    [ours] = [
        line for line in operators.graph_of(kind, dtype, kind.sizes[0]).splitlines() if line.startswith("op ")
    ]
    assert (line.split()[2], line.split(" = ")[1].split("(")[0]) == (
        ours.split()[2],
        ours.split(" = ")[1].split("(")[0],
    )


class _Calls(torch.nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.kind.call(*given)


def test_a_step_of_adamw_moves_so_many_bytes() -> None:
    """A device that has measured its optimizer's step, by the bytes that a profile tells."""
    graph = Graph(capture(*models.mlp()).graph_text)
    made = Plan.named(graph, "data:1", 1)
    compiled = compile(made)
    trained = compiled.trained[0] * operators.PASSES

    def update(bytes_: float) -> float:
        row = (
            f"kind = 'optimizer'\ndtype = 'f32'\npass = 'forward'\nbytes = [{float(bytes_)}]\nseconds = [1.0]"
        )
        head = "[[nodes]]\ndevices = 'here:1'\n[devices.here]\nlike = 'cpu'\n"
        text = f"{head}[[devices.here.operators]]\n{row}\n"
        [rank] = simulate_step(made, compiled, "here", text).ranks
        return float(rank["update"])

    assert update(trained) == pytest.approx(1.0)
    assert update(trained / 2) == pytest.approx(2.0)


# A device whose runtime takes known times, for what is told of probes.
_KNOWN = """[[nodes]]
devices = "here:2"
[nodes.link]
bandwidth = "2 GB/s"
latency = "50 us"
[devices.here]
memory = "8 GB"
bandwidth = "10 GB/s"
peak = {{ f32 = "100 GFLOP/s" }}
overhead = "4 us"
[devices.here.runtime]
step = "{step} us"
call = "{call} us"
wake = "{wake} us"
hidden = 1.0
"""


@pytest.mark.slow
def test_what_a_step_takes_besides_is_found() -> None:
    """Of steps that take known times besides what is told of them."""

    def text(besides: Overhead) -> str:
        return _KNOWN.format(**{name: 1e6 * getattr(besides, name) for name in ("step", "call", "wake")})

    def seconds_of(plan: str, depth: int, size: tuple[int, int], updated_by: str, besides: Overhead) -> float:
        module, batch = overhead.probe(depth, size)
        made = Plan.named(Graph(capture(module, batch).graph_text), plan, 2)
        return simulate_step(made, compile(made), "here", text(besides), optimizer=updated_by).seconds

    real = Overhead(1e-3, 4e-5, 2e-4, 1.25)
    small = overhead.SMALL
    steps = [
        seconds_of(plan, depth, small, "none", real)
        for plan in overhead.plans_for(2)
        for depth in overhead.DEPTHS
    ]
    large = "data:2", overhead.LAYERS, overhead.LARGE, overhead.OPTIMIZER
    alone = seconds_of(*large, Overhead())
    steps.append(seconds_of(*large, real) + (real.slower - 1) * alone)
    actual = overhead.of_steps(2, steps, text)
    for name in ("step", "call", "wake", "slower"):
        assert getattr(actual, name) == pytest.approx(getattr(real, name), rel=1e-3), name
    # Steps quicker than what is told are no reason to tell less, nor is one that takes ages one to tell ages.
    assert overhead.of_steps(2, [*steps[:-1], alone / 2], text).slower == 1.0
    assert overhead.of_steps(2, [*steps[:-1], 9 * alone], text).slower == overhead.MOST


@pytest.mark.parametrize(("schedule", "times"), [("1f1b", 0), ("zb-h1", 3)])
def test_operators_with_halves_of_their_own_take_more(schedule: str, times: int) -> None:
    """Of three micro-batches each product whose parameter has a gradient, on the rank that has it."""
    module, batch = overhead.probe(2)
    graph = Graph(capture(module, batch).graph_text)
    made = Plan.named(graph, f"stages:2 x {schedule}", 2)
    compiled = compile(made)

    def backward(apart: float) -> list[float]:
        text = _KNOWN.format(step=0, call=0, wake=0) + f'apart = "{apart} ms"\n'
        return [rank["backward"] for rank in simulate_step(made, compiled, "here", text, batches=3).ranks]

    more = [after - before for before, after in zip(backward(0), backward(1), strict=True)]
    assert sum(more) == pytest.approx(times * 1e-3 * len(list(module.parameters())) / 2)


def test_smaller_messages_take_no_longer() -> None:
    points = [(1.0, 3.0), (2.0, 2.0), (4.0, 2.5), (8.0, 7.0)]
    assert messages.rising(points) == [(1.0, 2.0), (2.0, 2.0), (4.0, 2.5), (8.0, 7.0)]


def _written(device: str, torch_: str, threads: int) -> str:
    origin = f'[profile]\ndevice = "{device}"\ntorch = "{torch_}"\nthreads = {threads}\n'
    return f'{origin}[[nodes]]\ndevices = "cpu:2"\n'


@pytest.mark.parametrize(
    ("device", "version", "threads", "said"),
    [
        (None, None, 0, None),
        ("another", None, 0, "on another"),
        (None, "1.0", 0, "with PyTorch 1.0"),
        (None, None, 7, "with threads: "),
    ],
)
def test_a_profile_of_elsewhere_is_not_for_runs_here(
    device: str | None, version: str | None, threads: int, said: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "here.toml"
    path.write_text(_written(device or device_here("cpu"), version or torch.__version__, 1 + threads))

    def rank(rank: int, comm: Any) -> str:
        module, args = made[rank]
        options: dict[str, Any] = {"cache": False, "progress": False, "comm": comm}
        return sw.parallelize(module, args, plan="auto", cluster=str(path), **options).program.plan

    def recorded(rank: int, comm: Any) -> None:
        module, args = made[rank]
        model = sw.parallelize(module, args, plan="data", cache=False, progress=False, comm=comm)
        with sw.record(cluster=str(path)):
            model.train_step(args)

    for run in (rank, recorded):
        made = [models.mlp() for _ in range(2)]
        if said is None:
            run_local(2, run)
            continue
        with pytest.raises(sw.ClusterError, match=said) as raised:
            run_local(2, run)
        assert raised.value.code == "SW0917"


def test_what_is_simulated_may_be_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "there.toml"
    path.write_text(_written("another", "1.0", 64))
    graph = str(Path(__file__).parents[1] / "golden" / "mlp.graph")
    assert main(("simulate", graph, "--devices", "2", "--plan", "data", "--cluster", str(path))) == 0
    assert "a step takes" in capsys.readouterr().out
    require_from_here("cpu:2", None, "cpu")


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--devices", "0", "-o", "here.toml"), "SW0915"), (("-o", "nowhere/here.toml"), "SW0916")],
)
def test_refusals(
    words: tuple[str, ...],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(("profile", *words)) == 1
    assert code in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
