"""`shardwright plan` and `shardwright ckpt info`: what they print, and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import models
import shardwright as sw
from shardwright import Graph
from shardwright._core import cluster_devices, gpus, plan_names
from shardwright.capture import capture
from shardwright.cli import main
from shardwright.cli.cluster import clusters
from shardwright.cli.model import plans
from shardwright.start.planning import make_plan


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("gpt") / "graph.txt"
    path.write_text(capture(*models.gpt()).graph_text)
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_layers_that_are_alike_are_folded(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    folded = said(capsys, "plan", gpt, "--plan", "data:2 x megatron:2", "--text")
    every = said(capsys, "plan", gpt, "--plan", "data:2 x megatron:2", "--all")
    assert len(folded.splitlines()) < 0.7 * len(every.splitlines())
    assert "# batch, heads, 2 alike" in folded and "# batch, inner, 2 alike" in folded
    graph = Graph(Path(gpt).read_text())
    remarks = [line for line in every.splitlines() if line.startswith("# ")]
    assert sw.Plan.parse(graph, folded).text == sw.Plan.parse(graph, every).text
    assert sw.Plan.parse(graph, every).text.splitlines() + remarks == every.splitlines()


def test_a_table_says_what_each_module_does_and_takes(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan", gpt, "--plan", "data:2 x megatron:2"
    lines = said(capsys, *words).splitlines()
    assert lines[0] == "plan     data:2 x megatron:2 for Gpt, 4 devices"
    assert re.match(r"memory +[\d.]+ KiB on rank \d, which needs most$", lines[1])
    assert lines[2] == 'run      sw.parallelize(model, inputs, plan="data:2 x megatron:2")'
    rows = {" ".join(line.split("  ")[0].split()): line.split() for line in lines[2:]}
    assert rows["h.{0-1}.mlp"][1:7] == ["batch", "2", "x", "inner", "2", "0..4"]
    assert rows["h.{0-1}.attn"][1:7] == ["batch", "2", "x", "heads", "2", "0..4"]
    assert any(re.match(r"optimizer \(adamw\) +[\d.]+ KiB$", line) for line in lines)
    cluster = "--cluster", "ethernet-25g:2x2", "--batches", "3"
    lines = said(capsys, *words, *cluster).splitlines()
    first, step, memory, *_ = lines
    assert first == "plan     data:2 x megatron:2 for Gpt on ethernet-25g:2x2, 3 micro-batches, 4 devices"
    assert re.match(r"step +[\d.]+ [mu]s, [\d.]+% of what the devices can compute$", step)
    assert re.match(r"memory +.* of 37\.\d GiB on rank \d, which needs most: it fits$", memory)
    assert any(re.match(r"forward +[\d.]+% +\w+", line) for line in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("plan", ["data:2 x megatron:2", "zero3:4 x recompute", "stages:2 x data:2 x zb-h1"])
def test_what_rows_take_is_what_a_rank_does(plan: str, gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All rows together are the model, and what the busiest rank computes and communicates."""
    words = gpt, "--plan", plan, "--cluster", "ethernet-25g:2x2", "--batches", "4", "--json"
    answer = json.loads(said(capsys, "plan", *words))
    rows, step = answer["rows"], json.loads(said(capsys, "simulate", *words))
    manifest = json.loads(said(capsys, "manifest", *words))
    assert sum(row["operators"] for row in rows) == len(answer["operators"])
    assert sum(row["work"] for row in rows) == pytest.approx(1)
    assert answer["step"]["seconds"] == step["seconds"]
    stages = {row["block"] for row in rows}
    for block in stages:
        mine = [row for row in rows if row["block"] == block]
        role = manifest["roles"][block if len(stages) > 1 else 0]
        rank = next(it for it in step["ranks"] if it["rank"] == role["rank"])
        computed = sum(row["computes"] for row in mine)
        # Calls, sums and copies are nobody's.
        assert 0 < computed <= rank["forward"] + rank["backward"] + rank["again"] + 1e-12
        assert ("recompute" in plan) == any(row["recomputed"] for row in mine)
        inside = [it for it in role["communications"] if it["kind"] not in ("send", "receive")]
        moved = [it for it in inside if it["operator"] is not None]
        assert sum(row["bytes"] for row in mine) == pytest.approx(sum(it["bytes"] for it in moved))
        waited = sum(it["exposed_seconds"] for it in moved)
        assert sum(row["exposed"] for row in mine) == pytest.approx(waited)


def test_a_plan_is_written_as_a_file(gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.plan"
    out = said(capsys, "plan", gpt, "--plan", "stages:2 x zero3:2 x recompute", "-o", str(file))
    assert out.endswith(f"The plan is in {file}.\n")
    graph = Graph(Path(gpt).read_text())
    assert make_plan(graph, file).text == make_plan(graph, "stages:2 x zero3:2 x recompute").text
    again = said(capsys, "plan", gpt, "--plan", str(file))
    ours, theirs = out.splitlines()[:-1], again.splitlines()
    assert ours[1:] == theirs[1:] and ours[2] == f'run      sw.parallelize(model, inputs, plan="{file}")'
    assert main(["plan", gpt, "--plan", "data:2", "-o", str(tmp_path / "none" / "mine.plan")]) == 1
    assert "error[SW0928]" in capsys.readouterr().err


REWRITING = "the rewriting of %loss (aten.cross_entropy_loss.default) along b"


def test_what_is_rewritten_is_said(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"# rests on {REWRITING}\n" in said(capsys, "plan", gpt, "--plan", "data:2", "--text")
    assert f"\nrests on {REWRITING}\n" in said(capsys, "plan", gpt, "--plan", "data:2", "--verbose")
    assert "rewriting" not in said(capsys, "plan", gpt, "--plan", "data:2")
    numbers = json.loads(said(capsys, "plan", gpt, "--plan", "data:2", "--json"))
    assert numbers["rewritings"] == [REWRITING.removeprefix("the rewriting of ")]
    assert "rewriting" not in said(capsys, "plan", gpt, "--plan", "replicate", "--devices", "2")


def test_a_program_is_proved_against_the_model_as_it_was_captured(
    gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, other = str(tmp_path / "program"), tmp_path / "other.txt"
    compiled = said(capsys, "emit", gpt, "--plan", "data:2", "-o", program)
    captured = Path(gpt).read_text()
    assert (tmp_path / "program" / "graph.txt").read_text() == captured
    assert json.loads((tmp_path / "program" / "program.json").read_text())["digest"] == Graph(captured).digest
    proof = said(capsys, "check", program)
    assert proof == said(capsys, "check", program, gpt) and compiled.startswith(proof)
    assert "this rests on\n" in proof and f"\n  {REWRITING}\n" in proof
    # No file beside a program can stand in for the model.
    other.write_text(captured.replace("1e-05", "2e-05"))
    assert other.read_text() != captured
    assert main(["check", program, str(other)]) == 1
    assert "error[SW0604]" in capsys.readouterr().err
    (tmp_path / "program" / "graph.txt").unlink()
    assert proof == said(capsys, "check", program, gpt)


@pytest.mark.parametrize(
    ("plan", "devices"), [("data:2 x megatron:2", 4), ("data:2 x coshard:2", 2), ("FILE", 3)]
)
def test_the_plan_says_for_how_many_devices_it_is(
    plan: str, devices: int, gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.plan"
    file.write_text('shardwright-plan 1\nname "mine"\ndevices 3\nuse "data"\n')
    named = plan.replace("FILE", str(file))
    assert f"\ndevices {devices}\n" in said(capsys, "plan", gpt, "--plan", named, "--text")


@pytest.mark.parametrize("plan", ["data", "data:2 x megatron", "coshard:4"])
def test_else_it_must_be_told(plan: str, gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", gpt, "--plan", plan]) == 1
    assert f"error[SW0330]: it is not said for how many devices `{plan}` is" in capsys.readouterr().err


def test_without_processes_nobody_is_told_to_start_some(
    gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.plan"
    file.write_text('shardwright-plan 1\ndevices 3\nuse "data"\n')
    assert main(["plan", gpt, "--plan", str(file), "--devices", "2"]) == 1
    assert "help: use 3 devices, or a plan for 2\n" in capsys.readouterr().err


def test_a_plan_as_json(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(said(capsys, "plan", gpt, "--plan", "data:2", "--json"))
    plan = make_plan(Graph(Path(gpt).read_text()), "data:2")
    assert (answer["plan"], answer["devices"], answer["text"]) == ("data:2", 2, plan.text)
    assert len(answer["operators"]) == len(plan.decisions)
    assert {
        "path": "h.0.mlp.c_fc",
        "target": "aten.linear.default",
        "splits": [["b", 2]],
        "devices": [0, 1],
    }.items() <= next(one for one in answer["operators"] if one["path"] == "h.0.mlp.c_fc").items()


def test_what_two_plans_decide_differently(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "plan", gpt, "--devices", "2", "--diff", "data", "megatron").splitlines()
    assert lines[:2] == ["- data, 2 devices", "+ megatron, 2 devices"]
    assert '- op "h.*.mlp.c_fc" aten.linear.default: split b 2 on 0..2  # batch, 2 alike' in lines
    assert '+ op "h.*.mlp.c_fc" aten.linear.default: split n 2 on 0..2  # inner, 2 alike' in lines
    answer = json.loads(said(capsys, "plan", gpt, "--devices", "2", "--diff", "data", "megatron", "--json"))
    up = next(one for one in answer["operators"] if one["path"] == "h.0.mlp.c_fc")
    assert (up["a"]["splits"], up["b"]["splits"]) == ([["b", 2]], [["n", 2]])
    same = said(capsys, "plan", gpt, "--diff", "data:2", "data:2 x megatron:1")
    assert same == "`data:2` and `data:2 x megatron:1` decide the same\n"


def test_completion_knows_every_plan() -> None:
    assert {axis.split(":")[0] for plan in plans() for axis in plan.split(" x ")} == {"auto", *plan_names()}


def test_completion_and_the_list_know_every_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    known, more = said(capsys, "clusters").split("\n\n")
    named = [line.split(maxsplit=1) for line in known.splitlines()[1:]]
    assert tuple(name for name, _ in named) == clusters() and "dgx-h100:8x4" in clusters()
    assert all(cluster_devices(name) > 0 and about for name, about in named)
    listed = [line.split()[0] for line in more.splitlines()[1:]]
    assert listed == [name for name, *_ in gpus()] and all(
        cluster_devices(f"{name}:2") == 2 for name in listed
    )
    assert re.search(r"^h100 +Hopper +80 GB +3.35 TB/s +989 TFLOP/s  450 GB/s NVLink$", more, re.MULTILINE)
    assert re.search(
        r"^l4 +Ada +21 GB +0.30 TB/s +121 TFLOP/s  12.5 GB/s through the host$", more, re.MULTILINE
    )


def test_what_a_checkpoint_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model: Any = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    sw.save(model, optimizer, tmp_path / "c", {"step": 3, "scheduler": {"last": 1}})
    lines = said(capsys, "ckpt", "info", str(tmp_path / "c")).splitlines()
    assert lines[0].startswith(f"{tmp_path / 'c'}: 1 file, ")
    assert lines[1] == "model: 2 tensors (32 B)"
    assert "  weight  float32   [2, 3]" in lines and "extra: 1 value" in lines
    answer = json.loads(said(capsys, "ckpt", "info", str(tmp_path / "c"), "--json"))
    tensors = answer["parts"]["model"]["tensors"]
    assert tensors["bias"] == {"dtype": "float32", "shape": [2], "bytes": 8}
    assert answer["parts"]["optimizer"]["tensors"]["state.weight.exp_avg"]["shape"] == [2, 3]
    (tmp_path / "c" / next(iter(answer["files"]))).unlink()
    assert "  missing: __0_0.distcp" in said(capsys, "ckpt", "info", str(tmp_path / "c"))


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "info", str(tmp_path)]) == 1
    assert "error[SW0742]" in capsys.readouterr().err


def test_the_rule_of_an_operator_is_shown(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "ops", "show", "linear", gpt)
    assert text.startswith("aten.linear.default: of the family contraction\n")
    assert "  rule     b s k@, n k@, n -> b s n\n" in text
    assert re.search(r"  dims     b \(\d+\), s \(\d+\), k \(\d+\), n.0 \(3\), n.1 \(\d+\)", text)
    assert re.search(r"  example  %\w+ f64\[.*\] = aten.linear.default\(%\w+, %\w+, %\w+\)\n", text)
    assert "  marks    `+` parts give sums that are added up, `@` rewritten before it is split\n" in text
    assert "rewritten into simpler operators" in said(capsys, "ops", "show", "aten.layer_norm.default", gpt)


def test_an_operator_that_the_model_does_not_call(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "ops", "show", "add", gpt)
    assert "aten.add.Tensor: of the family pointwise\n  rule" in text
    assert "aten.add.Scalar: of the family pointwise\n  Gpt does not call it" in text


def test_an_operator_without_a_rule_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "show", "linaer"]) == 1
    said = capsys.readouterr().err
    assert "error[SW0158]: no operator linaer has a rule" in said and "did you mean `linear`" in said


CUT = """
import torch, models

def whole(batch=8):
    module, (idx, targets) = models.gpt(batch=batch)
    return module, (idx, targets)

def half():
    return whole(4)

def mixing():
    return models.resnet()
"""


@pytest.mark.slow
def test_a_batch_that_is_cut(tmp_path: Path, gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is told is of one part: the plan and the memory of half of the batch."""
    path = tmp_path / "mine.py"
    path.write_text(CUT)
    given = ("--plan", "data:2", "--json")
    whole, half = (json.loads(said(capsys, "plan", f"{path}:{name}", *given)) for name in ("whole", "half"))
    cut = json.loads(said(capsys, "plan", f"{path}:whole", "--micro-batches", "2", *given))
    assert cut == half and cut["memory"] != whole["memory"]
    said(
        capsys, "emit", f"{path}:whole", "--micro-batches", "2", "--plan", "data:2", "-o", str(tmp_path / "p")
    )
    said(capsys, "check", str(tmp_path / "p"), f"{path}:whole", "--micro-batches", "2")
    for model, number, code in [
        (f"{path}:whole", "3", "SW0845"),
        (f"{path}:whole", "0", "SW0845"),
        (f"{path}:mixing", "2", "SW0360"),
        (gpt, "2", "SW0116"),
    ]:
        assert main(["plan", model, "--plan", "data:2", "--micro-batches", number]) == 1
        assert f"error[{code}]" in capsys.readouterr().err


def test_a_program_is_run_on_numbers(gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program"
    said(capsys, "emit", gpt, "--plan", "data:2", "-o", str(program))
    proof = said(capsys, "check", str(program))
    printed = said(capsys, "check", str(program), "--numeric", "--batches", "1")
    assert printed.startswith(proof) and "\non numbers: equal\n" in printed
    assert "in a step of 1 micro-batch\n" in printed
    assert printed.rstrip().endswith("by a table: aten.gelu.default")
