"""What `shardwright plan --plan auto` says of what it found, and why."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from models_to_search import MODELS
from shardwright import demo
from shardwright._core import Graph
from shardwright.capture import capture
from shardwright.cli import main
from shardwright.start.auto_plan import Choice

GRAPHS = Path(__file__).parents[2] / "crates" / "search" / "tests" / "graphs"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("found") / "graph.txt"
    path.write_text(capture(demo.build(), demo.batches()[0]).graph_text)
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_a_plan_says_what_is_expected_of_it(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, file, "--plan", "auto", "--cluster", "dgx-h100:4x1", "--batches", "2")
    assert re.search(r"a step takes .* of what the devices can compute", out)
    assert re.search(r"no plan takes less than .* times the lower bound", out)
    assert re.search(r"searched: \d+ decisions with [\d,]+ choices", out)


def test_what_was_found_is_never_slower_than_any_named_plan_nor_below_the_bounds(file: str) -> None:
    graph = Graph(Path(file).read_text())
    for cluster in ("dgx-h100:4x1", "ethernet-25g:2x2", "cpu:4"):
        found = Choice(cluster, batches=2).search(graph, 4, every=True)
        first, fits = found.rows[0], [row for row in found.rows if row["fits"]]
        assert first["seconds"] == min(row["seconds"] for row in fits)
        mine = [row for row in fits if row["plan"].startswith("auto")]
        assert mine and found.inside is not None
        assert found.inside[0] <= min(row["seconds"] for row in mine)
        stages = [row["seconds"] for row in fits if "stages" not in row["plan"]]
        assert found.bound <= found.inside[0] <= min(stages)


def test_why_it_is_divided_so_is_there_as_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [file, "--plan", "auto", "--cluster", "ethernet-25g:2x2", "--batches", "2"]
    asked = [*words, "--explain", "h.0.mlp.up"]
    told, lines = json.loads(said(capsys, *asked, "--json")), said(capsys, *asked).splitlines()
    first, *others = told["ways"]
    assert first["seconds_more"] == 0 and others and all(way["seconds_more"] >= 0 for way in others)
    assert first["seconds"]["compute"] > 0 and first["bytes"] > 0
    shown = [line for line in lines if "chosen" in line or " +" in line]
    assert [line.split("  ")[0] for line in shown] == [way["divided"] for way in told["ways"]]
    better = [way["better_if"] for way in others if way["better_if"]]
    assert all(any(line.endswith(one) for line in shown) for one in better)


def test_json_has_it_all(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plan", "auto", "--cluster", "dgx-h100:4x1", "--batches", "2", "--json"]
    told = json.loads(said(capsys, file, *words))["found"]
    assert told["step"] >= told["bound"] > 0
    assert told["search"]["decisions"] > 10
    assert told["shapes"]["tried"] == told["shapes"]["all"] > 0


def test_an_operator_is_explained(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plan", "auto", "--cluster", "dgx-h100:4x1", "--batches", "2", "--explain"]
    lines = said(capsys, file, *words, "h.0.mlp.up").splitlines()
    rows = [line for line in lines if re.search(r"chosen|\+[\d.]+ (u|m)?s", line)]
    assert "chosen" in rows[0] and len(rows) > 3
    assert all("chosen" not in row for row in rows[1:])


def test_an_operator_that_is_not_there(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", file, "--plan", "auto", "--cluster", "dgx-h100:4x1", "--explain", "h.0.mlp.upp"]
    assert main(words) == 1
    told = capsys.readouterr().err
    assert "SW0926" in told and "h.0.mlp.up" in told


def test_a_path_that_is_not_there_is_said_before_anything_is_searched(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Choice, "search", lambda *args, **kwargs: pytest.fail("it was searched"))
    words = ["plan", file, "--plan", "auto", "--cluster", "dgx-h100:4x1", "--explain", "h.0.mlp.upp"]
    assert main([*words, "--batches", "2"]) == 1
    assert "SW0926" in capsys.readouterr().err


def test_of_a_pipeline_it_is_said_for_the_operators_block(capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(GRAPHS / "words.graph"), "--plan", "auto", "--batches", "16", "--explain"]
    told = json.loads(said(capsys, *words, "h.1.up", "--cluster", "cpu:4", "--json"))
    assert told["block"] == {"number": 1, "of": 2, "devices": [2, 4]}
    assert told["of"].startswith("found, 2 stages") and len(told["ways"]) > 1
    lines = said(capsys, *words, "h.1.up", "--cluster", "cpu:4")
    assert f"in block 2 of 2 of `{told['of']}`, on devices 2 to 3" in lines
    alone = said(capsys, *words, "h.1.up", "--cluster", "ethernet-25g:4x1")
    assert "h.1.up is whole: it has one device" in alone


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
