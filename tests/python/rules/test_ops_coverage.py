"""`shardwright ops coverage`: what of a model has no rule, where, and what splitting it would take."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli import main

GOLDEN = Path(__file__).parents[1] / "golden" / "coverage.txt"

# Lines of it are in the golden file.
MODEL = """
import torch
from torch import nn


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Router(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        if x.mean().item() > 100:
            x = x * 2
        return self.gate(x)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.router = Router(width)

    def forward(self, x):
        x = x + self.down(torch.relu(self.up(x)))
        return x + Straight.apply(self.router(x))


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.h = nn.ModuleList(Layer(width) for _ in range(2))

    def forward(self, x):
        for layer in self.h:
            x = layer(x)
        return torch.pdist(x.flatten(0, 1)).mean()


def net():
    torch.manual_seed(0)
    return Net(), (0.1 * torch.randn(4, 8, 16),)


def ruled():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), (torch.randn(4, 16),)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def covered(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["ops", "coverage", *words, "--json"]) == 0
    coverage: dict[str, Any] = json.loads(capsys.readouterr().out)
    return coverage


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "coverage", "net.py:net", "--plan", "megatron", "--devices", "2"]) == 0
    said = capsys.readouterr().out
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(said)
    assert said == GOLDEN.read_text()


@pytest.mark.usefixtures("folder")
def test_each_lack_is_told_with_what_splitting_takes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["lack"]: row for row in covered(capsys, "net.py:net")["without_rule"]}
    assert set(rows) == {"module", "function", "operator"}
    module, function, operator = rows["module"], rows["function"], rows["operator"]
    assert module["python"] and function["python"] and not operator["python"]
    assert module["names"] == ["h.0.router", "h.1.router"] and module["name"] == "h.*.router"
    assert "net.py:22" in module["reason"], "the line that reads a value"
    assert 'sw.register_op("... -> ...")' in function["to_split"] and "net:Straight" in function["to_split"]
    assert "ops discover pdist" in operator["to_split"]
    assert [row["operators"] for row in (module, function, operator)] == [2, 2, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_shares_are_those_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    coverage = covered(capsys, "net.py:net", "--plan", "megatron", "--devices", "2")
    whole, ruled, rows = coverage["model"], coverage["with_rule"], coverage["without_rule"]
    for what in ("operators", "operations", "activations"):
        assert ruled[what] + sum(row[what] for row in rows) == pytest.approx(whole[what])
        ways = sum(coverage["plan"][way][what] for way in ("split", "replicated", "single"))
        assert ways == pytest.approx(whole[what])
    [module] = (row for row in rows if row["lack"] == "module")
    # A router has one linear of a layer's nine of that size.
    assert module["operations"] / whole["operations"] == pytest.approx(1 / 9, rel=0.01)
    assert module["parameters"] == 2 * (16 * 16 + 16) * 4
    assert whole["parameters"] == 2 * (9 * 16 * 16 + 64 + 16 + 16) * 4
    # The linears of the MLP are all that it splits; they have nearly all of the rest.
    split = coverage["plan"]["split"]
    assert split["operators"] >= 6 and 0.8 < split["operations"] / whole["operations"] < 8 / 9


@pytest.mark.usefixtures("folder")
def test_a_model_of_which_all_has_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert covered(capsys, "net.py:ruled")["without_rule"] == []
    assert main(["ops", "coverage", "net.py:ruled"]) == 0
    assert "3 of 3 operators have a rule, with 100.0% of the operations" in capsys.readouterr().out
