"""Pipelines whose stages are found: real processes, beside the single device."""

from __future__ import annotations

from pathlib import Path

import pytest

import piped
import shardwright as sw
from models import MODELS
from shardwright import Graph
from shardwright._core import Found, Plan, compile, verify
from shardwright.capture import capture
from shardwright.cli.found import lines_of
from shardwright.start.auto_plan import Choice


def _found(graph: Graph) -> Found:
    return Choice("cpu:4", batches=piped.BATCHES).search(graph, piped.WORLD, every=True)


def _plans(graph: Graph) -> list[Plan]:
    search = _found(graph)
    plans = [search.plan(at) for at, row in enumerate(search.rows) if row["plan"].startswith("found, ")]
    assert search.pipelines is not None and search.pipelines[2] > 0
    assert len(plans) > 2
    return plans


@pytest.mark.processes
def test_equal_to_the_single_device(tmp_path: Path) -> None:
    captured = capture(*MODELS["gpt"]())
    plans = _plans(Graph(captured.graph_text))
    piped.is_equal_to_the_single_device([piped.bundle_of(captured, plan) for plan in plans], tmp_path)


def test_what_is_printed_is_the_plan_again() -> None:
    graph = Graph(capture(*MODELS["gpt"]()).graph_text)
    for plan in _plans(graph):
        assert Plan.parse(graph, plan.text).text == plan.text


def test_a_program_that_leaves_a_message_out_is_refused() -> None:
    text_of_graph = capture(*MODELS["gpt"]()).graph_text
    made = compile(_plans(Graph(text_of_graph))[0])
    verify(text_of_graph, dict(made.files))
    files = dict(made.files)
    name, text = next((name, text) for name, text in files.items() if "    run.send(" in text)
    lines = text.splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if line.strip().startswith("run.send("))
    files[name] = "".join(lines[:at] + lines[at + 1 :])
    with pytest.raises(sw.ShardwrightError):
        verify(text_of_graph, files)


def test_of_an_order_that_was_searched_it_is_told_what_none_can_beat() -> None:
    graph = Graph(capture(*MODELS["gpt"]()).graph_text)
    search = Choice("cpu:4", batches=8).search(graph, piped.WORLD)
    first = search.rows[0]
    assert first["plan"].endswith(", in an order of its own") and "\ntimetable 0" in search.plan(0).text
    assert 0.5 * first["seconds"] < first["order"] <= first["seconds"]
    assert any(line.startswith("its schedule was searched: with blocks") for line in lines_of(search))
    others = [row for row in search.rows if not row["plan"].endswith(", in an order of its own")]
    assert all(row["order"] is None for row in others)
