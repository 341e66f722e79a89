"""What `shardwright plan --plan auto` says of what it found, and why."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from models_to_search import MODELS
from shardwright import demo
from shardwright._core import Graph
from shardwright.capture import capture
from shardwright.cli import main
from shardwright.cli.found import explained, explained_in_numbers
from shardwright.start.auto_plan import Choice

GRAPHS = Path(__file__).parents[3] / "crates" / "search" / "tests" / "graphs"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("found") / "graph.txt"
    path.write_text(capture(demo.build(), demo.batches()[0]).graph_text)
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_a_plan_says_what_is_expected_of_it(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, file, "--plan", "auto", "--cluster", "dgx-h100:4x1", "--batches", "2", "--verbose")
    plan, step, memory, best, run = out.splitlines()[:5]
    assert plan.startswith("plan     ") and memory.startswith("memory   ") and run.startswith("run      ")
    assert re.match(r"step +.* of what the devices can compute$", step)
    assert re.match(r"best +no plan takes less than .*: this one takes at most [\d.]+ times that$", best)
    assert re.search(r"no plan takes less than .* times the lower bound", out)
    assert re.search(r"searched: \d+ decisions with [\d,]+ choices", out)


def test_what_was_found_is_never_slower_than_any_named_plan_nor_below_the_bounds(file: str) -> None:
    graph = Graph(Path(file).read_text())
    for cluster in ("dgx-h100:4x1", "ethernet-25g:2x2", "cpu:4"):
        search = Choice(cluster, batches=2).search(graph, 4, every=True)
        first, fits = search.rows[0], [row for row in search.rows if row["fits"]]
        assert first["seconds"] == min(row["seconds"] for row in fits)
        mine = [row for row in fits if row["plan"].startswith("auto")]
        assert mine and search.inside is not None
        assert search.inside[0] <= min(row["seconds"] for row in mine)
        stages = [row["seconds"] for row in fits if "stages" not in row["plan"]]
        assert search.bound <= search.inside[0] <= min(stages)


def test_why_it_is_divided_so_is_there_as_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [file, "--plan", "auto", "--cluster", "cpu:4", "--batches", "2"]
    asked = [*words, "--explain", "h.0.mlp.up"]
    answer, lines = json.loads(said(capsys, *asked, "--json")), said(capsys, *asked).splitlines()
    first, *others = answer["ways"]
    assert first["seconds_more"] == 0 and others and all(way["seconds_more"] >= 0 for way in others)
    assert first["seconds"]["compute"] > 0 and first["bytes"] > 0
    shown = [line for line in lines if "chosen" in line or " +" in line]
    assert [line.split("  ")[0] for line in shown] == [way["divided"] for way in answer["ways"]]
    better = [way["better_if"] for way in others if way["better_if"]]
    assert all(any(line.endswith(one) for line in shown) for one in better)


def test_json_has_it_all(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plan", "auto", "--cluster", "dgx-h100:4x1", "--batches", "2", "--json"]
    answer = json.loads(said(capsys, file, *words))["found"]
    assert answer["step"] >= answer["bound"] > 0
    assert answer["search"]["decisions"] > 10
    assert answer["shapes"]["tried"] == answer["shapes"]["all"] > 0


def test_an_operator_is_explained(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plan", "auto", "--cluster", "dgx-h100:4x1", "--batches", "2", "--explain"]
    lines = said(capsys, file, *words, "h.0.mlp.up").splitlines()
    rows = [line for line in lines if re.search(r" chosen +[\d.]|\+[\d.]+ (u|m)?s", line)]
    assert "chosen" in rows[0] and len(rows) > 3
    assert all("chosen" not in row for row in rows[1:])


def test_an_operator_that_is_not_there(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", file, "--plan", "auto", "--cluster", "dgx-h100:4x1", "--explain", "h.0.mlp.upp"]
    assert main(words) == 1
    printed = capsys.readouterr().err
    assert "SW0926" in printed and "h.0.mlp.up" in printed


def test_a_path_that_is_not_there_is_said_before_anything_is_searched(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Choice, "search", lambda *args, **kwargs: pytest.fail("it was searched"))
    words = ["plan", file, "--plan", "auto", "--cluster", "dgx-h100:4x1", "--explain", "h.0.mlp.upp"]
    assert main([*words, "--batches", "2"]) == 1
    assert "SW0926" in capsys.readouterr().err


class _Pipeline:
    """What a search gives whose quickest plan is a pipeline that was found, in an order of its own."""

    rows = ({"plan": "found, 2 stages x zb-h1, in an order of its own", "seconds": 1e-3},)

    def __init__(self, *ways: Any):
        self._ways = list(ways)

    def explain(self, operator: int, most: int) -> Any:
        return "found, 2 stages x zb-h1", (1, 2, (2, 4)), 1, self._ways


def test_of_a_pipeline_it_is_said_for_the_operators_block() -> None:
    graph = Graph((GRAPHS / "words.graph").read_text())
    spent = (1e-3, 0.0, 0.0, 0.0)
    ways = ("inner 2", 0.0, spent, 1e6, None), ("batch 2", 1e-4, (1e-3, 1e-4, 0.0, 0.0), 1e6, None)
    search: Any = _Pipeline(*ways)
    numbers = explained_in_numbers(search, graph, "h.1.up", lambda: search)
    assert numbers["block"] == {"number": 1, "of": 2, "devices": (2, 4)} and len(numbers["ways"]) == 2
    lines = "\n".join(explained(search, graph, "h.1.up", lambda: search))
    assert lines.startswith(f"the plan that was chosen is `{search.rows[0]['plan']}`")
    assert f"in block 2 of 2 of `{numbers['of']}`, on devices 2..4" in lines
    alone: Any = _Pipeline(("whole", 0.0, spent, 1e6, None))
    assert "h.1.up is whole: it has one device" in "\n".join(explained(alone, graph, "h.1.up", lambda: alone))


def test_a_plan_that_was_named_is_not_explained(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", file, "--plan", "data:4", "--explain", "h.0.mlp.up"]) == 1
    assert "SW0925" in capsys.readouterr().err


def test_one_device_has_nothing_to_explain(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, file, "--plan", "auto", "--cluster", "h200:1", "--explain", "h.0.mlp.up")
    assert "one device" in out


@pytest.mark.parametrize("name", MODELS)
def test_the_search_is_tested_on_graphs_of_models(name: str) -> None:
    model, inputs = MODELS[name]()
    file = GRAPHS / f"{name}.graph"
    text = capture(model, inputs).graph_text
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.read_text() == text
