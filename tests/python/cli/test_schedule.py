"""The order of blocks that is searched: the command, files of blocks, and plans that run what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright as sw
from shardwright import cli, demo
from shardwright._core import Graph, Plan, blocks_of_shape, compile, search_order, shape_names
from shardwright.capture import capture
from shardwright.cli.schedule import SHAPES

MINE = """shardwright-blocks 1
devices 2
memory 2
block down on 0: time 2, memory 1
block both on 0..2: time 1, after down
block up on 0: time 3, memory -1, after both
"""


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["schedule", *words]) == 0
    return capsys.readouterr().out


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["schedule", *words]) == 1
    return capsys.readouterr().err


def test_the_command_knows_every_shape() -> None:
    assert tuple(name for name, _ in shape_names()) == SHAPES


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_searched_and_all_is_told(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = json.loads(said([shape, "--devices", "4", "--micro-batches", "8", "--json"], capsys))
    assert (numbers["bubbles"], numbers["proved"], numbers["micro_batches"]) == (0, True, 8)
    assert numbers["makespan_bound"] <= numbers["makespan"] and numbers["period"] == numbers["period_bound"]
    ends = [start + block["time"] for block in numbers["blocks"] for start in block["starts"]]
    assert max(ends) == numbers["makespan"] and all(len(it["starts"]) == 8 for it in numbers["blocks"])


def test_a_step_is_drawn_and_its_bounds_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(["v", "--devices", "2", "--micro-batches", "3"], capsys)
    assert text.startswith(
        "device 0   F0 F1 .  .  .  B0------ F2 B1------ .  B2------\n"
        "device 1   .  F0 B0------ F1 B1------ F2 B2------\n\n"
        "steady state: a micro-batch every 4, 2 in flight\n"
        "  bubbles 0, proved the fewest (no period of a micro-batch is shorter than 4)\n"
        "step: 3 micro-batches, in that order, take 16\n"
        "  proved the shortest (none takes less than 16)\n"
    )


def test_fewer_micro_batches_under_way_leave_bubbles(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  bubbles 2, proved the fewest" in said(["alphafold", "--in-flight", "4"], capsys)
    assert "every 16, 1 in flight" in said(["v", "--memory", "1"], capsys)


def test_a_file_of_blocks_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.blocks"
    path.write_text(MINE)
    numbers = json.loads(said([str(path), "--micro-batches", "5", "--json"], capsys))
    assert (numbers["bubbles"], numbers["proved"], numbers["makespan"]) == (0, True, 30)
    assert numbers["timetable"] is None
    assert "down.0----" in said([str(path)], capsys)
    printed = said([str(path), "--blocks"], capsys)
    assert printed == MINE
    assert search_order(blocks_of_shape("x", 3), 3).bubbles == 0


def test_what_is_searched_until_a_deadline_has_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = json.loads(said(["v", "--deadline", "5", "--json"], capsys))
    assert (numbers["bubbles"], numbers["proved"]) == (0, True) and numbers["seconds"] < 5
    assert "bubbles 12, at least 0" in said(["v", "--deadline", "0"], capsys)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["w"], "error[SW0372]: there is no shape named `w`"),
        (["v", "--devices", "1"], "error[SW0372]: there is no shape on 1 devices"),
        (["v", "--devices", "-1"], "error[SW0374]: `--devices -1` is not a valid number"),
        (["v", "--micro-batches", "0"], "error[SW0372]: a step of 0 micro-batches cannot be searched"),
        (["v", "--micro-batches", "5000"], "error[SW0372]: a step of 5000 micro-batches cannot be searched"),
        (["v", "--memory", "0"], "error[SW0373]: no order was found"),
        (["k", "--in-flight", "0"], "error[SW0374]: `--in-flight 0`"),
        (["v", "--deadline", "-1"], "error[SW0374]: `--deadline -1.0`"),
        (["v", "--deadline", "nan"], "error[SW0374]: `--deadline nan`"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert text in refused(words, capsys)


def test_a_bad_file_is_refused_with_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.blocks"
    path.write_text(MINE.replace("after down", "after dwon"))
    text = refused([str(path)], capsys)
    assert "error[SW0370]: there is no block `dwon`" in text
    assert f"at: line 5, column 35 of {path}" in text
    assert "leave `--devices` out" in refused([str(path), "--devices", "2"], capsys)
    path.write_text(MINE.replace("memory -1", "memory 1"))
    assert "error[SW0371]: device 0 keeps 2 more after each micro-batch" in refused([str(path)], capsys)
    path.write_text(MINE)
    assert "error[SW0374]: the blocks have no names that a plan knows" in refused(
        [str(path), "--timetable"], capsys
    )
    path.write_bytes(b"\xff\xfe")
    assert "error[SW0374]" in refused([str(path)], capsys)
    assert "error[SW0374]" in refused([str(tmp_path)], capsys)


def drawn(graph: Graph, lines: str, batches: int) -> str:
    text = f'shardwright-plan 1\ndevices 4\nuse "stages:4"\n{lines}'
    return compile(Plan.parse(graph, text)).timetable(batches)


def test_a_plan_runs_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a pipeline it is 1F1B, and that plan is compiled and proved."""
    graph = Graph(capture(demo.build(), demo.batches()[0]).graph_text)
    lines = said(["v", "--timetable"], capsys)
    assert lines.splitlines() == [
        f"timetable {at}: F{at}{f'+{3 - at}' if at < 3 else ''} B{at}" for at in range(4)
    ]
    assert drawn(graph, lines, 6) == drawn(graph, "schedule 1f1b\n", 6)


def test_an_order_of_a_step_is_one_for_any_number_of_micro_batches() -> None:
    """With room for three it takes three micro-batches at a time, and a step may have an order of its own."""
    graph = Graph(capture(demo.build(), demo.batches()[0]).graph_text)
    search = search_order(blocks_of_shape("v", 4, 3), 6)
    assert search.timetable is not None
    assert (search.group, search.period) == (3, 16)
    assert "by 3:" in search.timetable or "by 6:" in search.timetable
    for batches in (1, 6, 8):
        assert drawn(graph, search.timetable, batches).count("B") == 4 * batches


def test_the_names_are_not_public() -> None:
    assert not {"search_order", "FoundOrder"} & set(sw.__all__)
