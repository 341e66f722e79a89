"""The memory of a rank, as the compiler counts it in the program, beside what lives when that runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import live
import models
import shardwright as sw
import zoo
from shardwright import Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture
from shardwright.cli import main
from shardwright.errors import CheckError, CompileError
from shardwright.precision import precision_of
from shardwright.report.memory import size_of
from shardwright.runtime import run_local

torch.set_num_threads(1)

MODELS: dict[str, Callable[[], zoo.Model]] = {
    "mlp": lambda: (*models.mlp(batch=256, depth=4), {}),
    "gpt": lambda: (*models.gpt(batch=8, time=32, vocabulary=200, depth=4), {}),
    # Its parts travel by themselves.
    "wide": lambda: (*models.gpt(vocabulary=1000, width=256), {}),
    "resnet": lambda: (*models.resnet(batch=8, size=24), {}),
    "llama": zoo.llama,
    "vit": zoo.vit,
    "t5": zoo.t5,
}
HELD = ["mlp", "gpt", "resnet", "llama", "vit", "t5"]
PLANS = [
    ("data", 2),
    ("megatron", 2),
    ("data x recompute", 2),
    ("coshard:2", 1),
    ("coshard x recompute", 1),
]
DIVIDED = [
    ("zero1", 2),
    ("zero2", 2),
    ("zero3", 2),
    ("zero3", 3),
    ("zero3 x recompute", 2),
    ("data x recompute:selective", 2),
    ("megatron:2 x zero3:2", 4),
    ("zero2:2 x data:2", 4),
    ("data x offload:activations", 2),
    ("data x offload:state", 2),
    ("zero1 x offload", 3),
    ("data x offload:parameters", 2),
    ("zero3 x offload:parameters", 2),
    ("zero3:2 x data:2 x offload:parameters", 4),
    ("megatron x recompute x offload:parameters", 2),
    ("data x recompute x offload:state", 2),
    ("megatron x offload", 2),
    ("zero3 x recompute x offload", 2),
    ("data x recompute:selective x offload", 2),
]
WITHOUT_LAYERS = {("resnet", "data x recompute"), ("resnet", "coshard x recompute")}
# T5's decoder reads its encoder in parts that are computed again twice: 8% less is told than lives.
LESS_IS_TOLD = {("t5", "coshard x recompute")}
PAIRS = [
    (name, *plan) for name in HELD for plan in PLANS if (name, plan[0]) not in WITHOUT_LAYERS | LESS_IS_TOLD
]
PAIRS += [(name, *plan) for name in ("gpt", "llama") for plan in DIVIDED]
# Of a Llama so small 3.3% more is told than lives, where it is 1.9% without.
PAIRS += [
    (name, plan, 2)
    for name in ("gpt", "vit", "t5")
    for plan in ("megatron x overlap", "megatron-sp x overlap")
]
PAIRS += [("wide", "zero1", 2), ("wide", "zero3", 2), ("wide", "zero3", 3), ("t5", "zero1", 2)]
TOLERANCE = 0.03


@functools.cache
def captured_model(name: str, precision: str | None = None) -> tuple[Any, Any, Captured, Graph]:
    """Module and batch, and what capture makes of them."""
    module, args, kwargs = MODELS[name]()
    captured = capture(module, args, kwargs, precision=precision_of(precision))
    return module, kwargs or args, captured, Graph(captured.graph_text)


def compiled(name: str, plan: str, devices: int, **options: Any) -> Compiled:
    return compile(Plan.named(captured_model(name)[3], plan, devices), **options)


@pytest.mark.parametrize(("name", "plan", "devices"), PAIRS)
def test_what_is_counted_is_what_lives(name: str, plan: str, devices: int) -> None:
    module, batch, captured, _ = captured_model(name)
    program = compiled(name, plan, devices)
    lived = live.of_steps(program, module, captured, batch)
    counted = program.memory()
    for rank, measured in zip(counted, lived, strict=True):
        predicted = rank.total - rank.peak["inputs"]
        assert abs(predicted - measured) <= TOLERANCE * measured, (rank.peak, rank.at, measured)


HALVES = [
    *(
        (name, f"stages:2{more} x zb-h1")
        for name in ("mlp", "gpt", "llama", "vit")
        for more in ("", " x recompute")
    ),
    # Of an MLP so small one value more than is told is 3.4%.
    *((name, "stages:2 x zb-v") for name in ("gpt", "llama", "vit")),
]


@pytest.mark.parametrize(("name", "plan"), HALVES)
def test_what_waits_between_halves_is_counted(name: str, plan: str) -> None:
    """Also what only the first half needs, which is free after it."""
    module, batch, captured, _ = captured_model(name)
    program = compiled(name, plan, 2)
    lived = live.of_steps(program, module, captured, batch, 6)
    for rank, measured in zip(program.memory(), lived, strict=True):
        predicted = rank.total - rank.peak["inputs"]
        assert abs(predicted - measured) <= TOLERANCE * measured, (rank.peak, rank.at, measured)


@pytest.mark.parametrize("more", ["tokens:2", "tokens:4", "tokens:3 x recompute"])
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_what_slices_of_the_sequence_keep_for_each_other_is_counted(name: str, more: str) -> None:
    module, batch, captured, _ = captured_model(name)
    program = compiled(name, f"stages:2 x {more}", 2)
    lived = live.of_steps(program, module, captured, batch, 3)
    for rank, measured in zip(program.memory(), lived, strict=True):
        predicted = rank.total - rank.peak["inputs"]
        assert abs(predicted - measured) <= TOLERANCE * measured, (rank.peak, rank.at, measured)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plan"), [("gpt", "data"), ("wide", "zero1"), ("wide", "zero3")])
def test_half_precision_is_counted_as_it_lives(name: str, plan: str) -> None:
    module, batch, captured, graph = captured_model(name, "bf16")
    kept = {name: str(dtype) for name, dtype in captured.kept.items()}
    program = compile(Plan.named(graph, plan, 2), kept=kept)
    [predicted, _] = program.memory()
    [measured, _] = live.of_steps(program, module, captured, batch)
    assert abs(predicted.total - predicted.peak["inputs"] - measured) <= TOLERANCE * measured


def test_parameters_in_half_precision_are_there_twice() -> None:
    _, _, captured, graph = captured_model("gpt", "bf16")
    kept = {name: str(dtype) for name, dtype in captured.kept.items()}
    [predicted, _] = compile(Plan.named(graph, "data", 2), kept=kept).memory()
    [alone, _] = compile(Plan.named(graph, "data", 2)).memory()
    # Float32 masters beside what a forward reads in two bytes.
    assert predicted.most["parameters"] == 3 * alone.most["parameters"]


def test_the_peak_is_the_sum_of_its_parts() -> None:
    for rank in compiled("gpt", "megatron", 2).memory():
        assert rank.total == sum(rank.peak.values())
        assert all(rank.peak[purpose] <= most for purpose, most in rank.most.items())


def test_the_state_of_the_optimizer() -> None:
    program = compiled("gpt", "data", 2)
    adamw, momentum, sgd = (program.memory(name)[0] for name in ("adamw", "sgd-momentum", "sgd"))
    parameters, numbers = sgd.peak["parameters"], len(list(captured_model("gpt")[0].parameters()))
    assert adamw.peak["optimizer"] == 2 * parameters + 4 * numbers
    assert momentum.peak["optimizer"] == parameters
    assert sgd.peak["optimizer"] == 0
    assert adamw.total - adamw.peak["optimizer"] == sgd.total
    with pytest.raises(CompileError, match="SW0430"):
        program.memory("lion")


def test_where_it_is_the_most() -> None:
    [rank, _] = compiled("gpt", "data", 2).memory()
    assert rank.at is not None
    assert rank.at.startswith("backward, grad ") and "aten.cross_entropy_loss.default" in rank.at
    assert "models.py:" in rank.at


def test_recomputation_keeps_less() -> None:
    plain, again = (compiled("gpt", plan, 2).memory()[0] for plan in ("data", "data x recompute"))
    assert again.most["activations"] < 0.5 * plain.most["activations"]
    assert again.peak["parameters"] == plain.peak["parameters"]


def test_what_is_on_the_host_is_told_by_itself() -> None:
    plain, away = (compiled("gpt", plan, 2).memory()[0] for plan in ("data", "data x offload:activations"))
    assert plain.offloaded == 0 and away.offloaded > 0
    assert away.most["activations"] < 0.6 * plain.most["activations"]
    # Of the calls that went last, as much is still under way as may be.
    assert plain.total - away.total > 0.2 * away.offloaded


def test_what_is_divided_between_steps() -> None:
    whole, once, passing = (compiled("gpt", plan, 2).memory()[0].most for plan in ("data", "zero1", "zero3"))
    for part in (once, passing):
        assert part["parameters"] < 0.51 * whole["parameters"]
        assert part["optimizer"] < 0.51 * whole["optimizer"]
    # All of them, and of the layers one and what comes next.
    assert once["gathered"] == whole["parameters"]
    assert 0 < passing["gathered"] < 0.5 * once["gathered"]
    assert whole["gathered"] == 0


@pytest.mark.slow
def test_many_ranks_that_are_alike_have_as_much() -> None:
    """Of these only a few are followed."""
    module, args = models.gpt(batch=64)
    graph = Graph(capture(module, args).graph_text)
    counted = compile(Plan.named(graph, "data", 64)).memory()
    assert len(counted) == 64
    assert len({(rank.total, rank.at) for rank in counted}) == 1
    one = compile(Plan.named(Graph(capture(*models.gpt(batch=2)).graph_text), "data", 2)).memory()[0]
    assert {k: v for k, v in counted[0].most.items() if k != "inputs"} == {
        k: v for k, v in one.most.items() if k != "inputs"
    }


def test_a_plan_that_does_not_fit_is_refused() -> None:
    rank = compiled("gpt", "data", 2).memory()[0]
    compiled("gpt", "data", 2, memory=(rank.total, "adamw"))
    with pytest.raises(CheckError) as refused:
        compiled("gpt", "data", 2, memory=(rank.total - 1, "adamw"))
    error = refused.value
    assert error.code == "SW0530" and error.place == rank.at
    assert "1 B more than" in error.what and "optimizer (adamw)" in str(error.why)
    assert "the plan `data x recompute` needs" in str(error.fix) and "which fits" in str(error.fix)
    for plan in ("data x offload:activations", "data x offload:state", "zero1", "zero3"):
        needed = told_size(compiled("gpt", plan, 2))
        assert f"the plan `{plan}` needs {needed}, which fits" in str(error.fix)
    compiled("gpt", "data", 2, memory=(rank.total - 1, "sgd"))


def test_plans_that_need_no_less_are_not_proposed() -> None:
    plain, again = (compiled("llama", plan, 2).memory()[0].total for plan in ("data", "data x recompute"))
    assert again > plain
    with pytest.raises(CheckError) as refused:
        compiled("llama", "data", 2, memory=(plain - 1, "adamw"))
    assert "`zero3`" in str(refused.value.fix) and "recompute" not in str(refused.value.fix)


def test_a_schedule_that_keeps_less_is_proposed() -> None:
    later, sooner = (compiled("gpt", f"stages:4 x {name}", 4) for name in ("gpipe", "1f1b"))
    most = max(rank.total for rank in later.memory())
    with pytest.raises(CheckError) as refused:
        compiled("gpt", "stages:4 x gpipe", 4, memory=(most - 1, "adamw"))
    assert f"the plan `stages:4 x 1f1b` needs {told_size(sooner)}, which fits" in str(refused.value.fix)


def test_parallelize_refuses_it_too() -> None:
    module, args = models.gpt()
    limited = {"plan": "data", "memory": "64KiB", "cache": False}
    with pytest.raises(sw.ShardwrightError, match="SW0530"):
        run_local(1, lambda _, comm: sw.parallelize(module, args, **limited, comm=comm))


@pytest.mark.parametrize("size", ["16", "lots", "0GiB"])
def test_sizes_have_units(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path)
    assert main(["plan", file, "--plan", "data:2", "--memory", size]) == 1
    assert ("SW0530" if size == "16" else "SW0431") in capsys.readouterr().err


def test_the_command_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path)
    assert main(["plan", file, "--plan", "data:2", "--memory", "1GiB", "--text"]) == 0
    assert "# a step needs " in capsys.readouterr().out
    assert main(["plan", file, "--plan", "data:2", "--json", "--optimizer", "sgd"]) == 0
    answer = json.loads(capsys.readouterr().out)["memory"]
    counted = compiled("gpt", "data", 2).memory("sgd")[0]
    assert (answer["total"], answer["peak"], answer["at"]) == (counted.total, counted.peak, counted.at)
    assert answer["ranks"] == [counted.total] * 2
    assert main(["plan", file, "--plan", "data:2", "--memory", "1MiB"]) == 1
    assert "error[SW0530]: rank 0 needs " in capsys.readouterr().err


def told_size(program: Compiled) -> str:
    return size_of(max(rank.total for rank in program.memory()))


def written(folder: Path) -> str:
    file = folder / "graph.txt"
    file.write_text(captured_model("gpt")[2].graph_text)
    return str(file)
