"""Constraints of a plan that is chosen: files, Python, commands, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import models
import shardwright as sw
from shardwright._core import Found
from shardwright.cli import main
from shardwright.constraints import Constraints, constraints_of
from shardwright.runtime import run_local
from shardwright.start.auto_plan import Choice

torch.set_num_threads(1)

GRAPH = str(Path(__file__).parents[1] / "golden" / "gpt.graph")
CLUSTER = "ethernet-25g:2x2"
HEADER = "shardwright-constraints 1\n"


def searched(lines: str, **options: Any) -> Any:
    choice = Choice(CLUSTER, batches=2, constraints=("mine", HEADER + lines), **options)
    return choice.search(sw.Graph(Path(GRAPH).read_text()), 4, every=True)


def ways(plan: sw.Plan, path: str) -> dict[str, int]:
    """How often the operators of a module are divided along each dim."""
    counts: dict[str, int] = {}
    for operator, splits, _ in plan.decisions:
        if operator.path == path:
            for dim, parts in splits:
                counts[dim] = counts.get(dim, 1) * parts
    return counts


def file(tmp_path: Path, lines: str) -> str:
    path = tmp_path / "mine.constraints"
    path.write_text(HEADER + lines)
    return str(path)


def test_what_is_pinned_is_so_in_every_plan_and_the_rest_is_looked_for() -> None:
    search = searched('pin "h.*.mlp.c_fc": split inner 4\nlimit stages 1\n')
    assert search.constraints == 2
    for at, row in enumerate(search.rows):
        plan = search.plan(at)
        assert ways(plan, "h.0.mlp.c_fc") == ways(plan, "h.1.mlp.c_fc") == {"n": 4}, row["plan"]
        assert "stages" not in row["plan"]
    assert {row["plan"] for row in search.rows} & {"megatron:4", "auto"}
    assert any("breaks" in why and "line 2" in why for _, why in search.passed_over)


def test_no_plan_of_one_block_is_better_than_without() -> None:
    def least(search: Found) -> float:
        return min(row["seconds"] for row in search.rows if "stages" not in row["plan"])

    # Of pipelines those are looked at that promise most, which may be others under constraints.
    free = least(Choice(CLUSTER, batches=2).search(sw.Graph(Path(GRAPH).read_text()), 4, every=True))
    for lines in ("tie Block\n", 'pin "*": split batch\n', "forbid recompute\nlimit stages 1\n"):
        assert least(searched(lines)) >= free * 0.999


def test_a_bound_is_of_the_plans_that_respect_them() -> None:
    search = searched('pin "*": split batch\nlimit stages 1\n')
    assert search.inside is not None
    assert search.inside[0] <= search.rows[0]["seconds"]


def test_commands_take_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = "--cluster", CLUSTER, "--batches", "2", "--constraints", file(tmp_path, "limit stages 1\n")
    assert main(["plan", GRAPH, "--plan", "auto", *given, "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "\nit respects all constraints: 1\n" in out and "no plan of one block that respects them" in out
    assert main(["compare", GRAPH, *given, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["constraints"] == 1 and not any("stages" in row["plan"] for row in answer["rows"])
    assert main(["compare", GRAPH, *given]) == 0
    assert "all respect the constraints: 1" in capsys.readouterr().out
    assert main(["simulate", GRAPH, "--plan", "auto", *given]) == 0
    assert main(["plan", GRAPH, "--plan", "auto", *given, "--explain", "h.0.mlp.c_fc"]) == 0


def test_the_name_of_a_plan_and_a_partial_plan_are_constraints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    part = tmp_path / "part.plan"
    part.write_text('shardwright-plan 1\ndevices 4\nop "h.*.mlp.c_fc": split n 4\n')
    for given, expected in (("data:4", {"b": 4}), (str(part), {"n": 4})):
        words = "--cluster", CLUSTER, "--constraints", given, "--json"
        assert main(["plan", GRAPH, "--plan", "auto", *words]) == 0
        operators = json.loads(capsys.readouterr().out)["operators"]
        mine = next(it for it in operators if it["path"] == "h.1.mlp.c_fc")
        assert dict(map(tuple, mine["splits"])) == expected


def test_lines_that_are_built_are_those_of_a_file() -> None:
    built = (
        Constraints()
        .pin("split inner 4", "h.*.mlp.c_fc")
        .pin("split batch", kind="aten.linear.*", nodes="between")
        .forbid("split sequence", module="Attention")
        .forbid("recompute")
        .limit("split batch 2")
        .limit("memory 60GiB")
        .tie("h.*")
        .use("megatron", nodes="inside")
    )
    assert built.text == HEADER + (
        'pin "h.*.mlp.c_fc": split inner 4\n'
        'pin "*" aten.linear.* between nodes: split batch\n'
        "forbid Attention: split sequence\n"
        "forbid recompute\n"
        'limit "*": split batch 2\n'
        "limit memory 60GiB\n"
        'tie "h.*"\n'
        'use "megatron" inside nodes\n'
    )
    assert constraints_of(built) == ("the constraints", built.text) == constraints_of(built.text)
    assert constraints_of("data") == ("the constraints", HEADER + 'use "data"\n')
    assert constraints_of(None) is None


REFUSALS = {
    "clash": ('tie "h.*"\npin "h.0.mlp.c_fc": split inner 4\npin "h.1.mlp.c_fc": split batch 4\n', "SW0333"),
    "one alone": ('forbid recompute\npin "lm_head": split vocabulary 3\n', "SW0333"),
    "memory": ("limit memory 10KB\nforbid offload\n", "SW0333"),
    "no word": ("prefer data\n", "SW0332"),
    "no dim": ('tie "h.*"\nforbid "h.*": split colour\n', "SW0332"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines, code = REFUSALS[name]
    given = file(tmp_path, lines)
    words = "--cluster", CLUSTER, "--constraints", given
    assert main(["plan", GRAPH, "--plan", "auto", *words]) == 1
    said = capsys.readouterr().err
    assert code in said
    refused_lines = [line for line in (2, 3, 4) if f"{given}, line {line}" in said]
    expected = {"clash": [2, 3, 4], "one alone": [3], "memory": [2], "no word": [2], "no dim": [3]}
    assert refused_lines == expected[name], said
    if name == "no dim":
        assert "column 21" in said and "`heads`" in said


def test_constraints_are_for_a_plan_that_is_chosen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = file(tmp_path, "limit stages 1\n")
    assert main(["plan", GRAPH, "--devices", "4", "--plan", "data", "--constraints", given]) == 1
    assert "SW0334" in capsys.readouterr().err
    with pytest.raises(sw.PlanError, match="SW0334"):
        sw.parallelize(torch.nn.Linear(2, 2), (torch.zeros(2, 2),), plan="data", constraints=given)
    none = str(tmp_path / "nowhere.constraints")
    assert main(["plan", GRAPH, "--plan", "auto", "--cluster", CLUSTER, "--constraints", none]) == 1
    assert "SW0336" in capsys.readouterr().err


def test_a_model_is_trained_under_what_respects_them() -> None:
    module, given = models.gpt(batch=4)
    constraints = sw.Constraints().pin("split inner 2", "h.*.mlp.c_fc").limit("stages 1")

    def body(_: int, comm: Any) -> Any:
        options = {"comm": comm, "cache": False, "progress": False}
        model = sw.parallelize(module, given, plan="auto", constraints=constraints, **options)
        return model.program.plan, model(*given)

    expected = module(*given)[1].detach()
    for plan, loss in run_local(2, body):
        assert "data" not in plan
        torch.testing.assert_close(loss[1].detach(), expected)
