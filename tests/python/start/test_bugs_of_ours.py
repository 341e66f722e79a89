"""What goes wrong inside the compiler is an error like others, which asks for a report and has saved it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import models
import shardwright as sw
from shardwright import Graph, Plan
from shardwright._core import _fail
from shardwright.capture import capture
from shardwright.errors import CompileError, PlanError


@pytest.fixture
def plan() -> Plan:
    module, args = models.mlp()
    return Plan.named(Graph(capture(module, args).graph_text), "data", 2)


def test_a_panic_is_an_error_with_the_graph_and_the_plan_saved(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(CompileError, match="the compiler failed: as it was asked to") as caught:
        _fail(plan)
    error = caught.value
    assert error.code == "SW0420"
    assert "a bug in Shardwright" in str(error)
    folder = Path(re.findall(r"the folder (\S+),", str(error))[0])
    assert folder.is_relative_to(tmp_path)
    graph = Graph((folder / "model.graph").read_text())
    assert Plan.parse(graph, (folder / "the.plan").read_text()).text == plan.text
    assert "plan_py.rs" in (folder / "failure.txt").read_text()
    assert capfd.readouterr().err == ""


def test_a_panic_whose_report_cannot_be_saved_is_an_error_too(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere" / "\0".join(["x"])))
    (tmp_path / "nowhere").write_text("a file")
    with pytest.raises(CompileError, match="could not be saved"):
        _fail(plan)


def test_an_operator_of_another_graph_is_refused(plan: Plan) -> None:
    module, args = models.mlp()
    graph, other = (Graph(capture(module, args).graph_text) for _ in range(2))
    draft, stranger = sw.Draft(graph, "mine", 2), sw.Draft(other, "other", 2)
    operator = other.operators[0]
    part = stranger.single(operator)[0]
    for use in [
        lambda: draft.single(operator),
        lambda: draft.trans(operator, "replicate", 2),
        lambda: draft.place(operator, [0]),
        lambda: draft.assign(part, 0),
        lambda: draft.order(operator, graph.operators[0]),
    ]:
        with pytest.raises(PlanError, match="not in the graph") as caught:
            use()
        assert caught.value.code == "SW0302"
