"""Rules that are wrong: each is caught when a model is captured, and by `shardwright ops verify`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from shardwright.as_python import registry
from shardwright.cli import main
from shardwright.start.compiling import captured_model
from wrong_rules import WRONG, Wrong

torch.set_num_threads(1)


class Calls(nn.Module):
    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        self.wrong = wrong
        made = (torch.rand(shape, dtype=torch.float64) for shape in wrong.shapes[1:])
        self.weights = nn.ParameterList([nn.Parameter(one, requires_grad=wrong.learns) for one in made])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.wrong.called(x, *self.weights, *self.wrong.ints)
        return found


def captured(wrong: Wrong) -> str:
    torch.manual_seed(1)
    x = torch.rand(wrong.shapes[0], dtype=torch.float64, requires_grad=wrong.learns)
    captured = captured_model(Calls(wrong), (x,))
    assert not captured.notes
    return captured.graph_text


def verified(graph: str, folder: Path) -> int:
    file = folder / "calls.graph"
    file.write_text(graph)
    return main(["ops", "verify", str(file), "--json"])


@pytest.fixture
def as_it_was() -> Iterator[None]:
    before = dict(registry._ALL)
    yield
    registry._ALL.clear()
    registry._ALL.update(before)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.what.replace(" ", "-"))
def test_it_is_caught(
    wrong: Wrong, as_it_was: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = rf"split {re.escape(wrong.split)}: {wrong.differs}"
    sw.register_op(wrong.right, **wrong.options)(wrong.function)
    graph = captured(wrong)
    assert verified(graph, tmp_path) == 0
    calls = json.loads(capsys.readouterr().out)["calls"]
    assert calls[0]["splits"] and not any(tried["problem"] for tried in calls[0]["splits"])

    sw.register_op(wrong.wrong, **wrong.options)(wrong.function)
    with pytest.raises(sw.CaptureError, match=said) as error:
        captured(wrong)
    assert error.value.code == "SW0138"
    assert error.value.what == f"the rule of `{wrong.name}` does not hold"
    assert "test_wrong_rules.py:" in str(error.value.fix)

    # Where nobody compared it before.
    assert verified(graph.replace(f'"{wrong.right}"', f'"{wrong.wrong}"'), tmp_path) == 1
    said_here = capsys.readouterr()
    problems = [
        tried["problem"] for tried in json.loads(said_here.out)["calls"][0]["splits"] if tried["problem"]
    ]
    assert problems and re.search(wrong.differs, problems[0])
    assert "error[SW0138]" in said_here.err and re.search(said, said_here.err)


def test_all_kinds_of_mistakes_are_among_them() -> None:
    assert len(WRONG) >= 12 and len({wrong.what for wrong in WRONG}) == len(WRONG)
    assert all(wrong.right != wrong.wrong for wrong in WRONG)
