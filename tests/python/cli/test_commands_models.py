"""What commands take as models and plans, how they end, and how they say things."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright import demo
from shardwright.capture import capture
from shardwright.cli import main
from shardwright.cli.found import explained
from shardwright.report.progress import Progress

torch.set_num_threads(1)

FUNCTIONS = """
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x, labels=None):
        return F.mse_loss(self.down(F.gelu(self.up(x))), labels)

def given():
    return torch.zeros(8, 8), torch.zeros(8, 8)

def by_place():
    return Net(), given()

def by_name():
    x, labels = given()
    return Net(), {"x": x, "labels": labels}

def both():
    x, labels = given()
    return Net(), (x,), {"labels": labels}

def neither():
    return Net()
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(FUNCTIONS)
    return str(tmp_path / "nets.py")


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("gpt") / "graph.txt"
    path.write_text(capture(demo.build(), demo.batches()[0]).graph_text)
    return str(path)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    capsys.readouterr()
    assert main(list(words)) == status
    return capsys.readouterr().out


def test_a_model_may_name_its_inputs(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        said(capsys, "plan", f"{file}:{name}", "--plan", "data:2", "--text").partition("\n# ")[0]
        for name in ("by_place", "by_name", "both")
    }
    assert len(texts) == 1
    assert main(["plan", f"{file}:neither", "--plan", "data:2"]) == 1
    assert 'model, {"x": x, "y": y}' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "code"),
    [("FILE:by_nam", "did you mean `by_name`"), ("net.py:by_name", "SW0116"), ("no-such-model", "SW0773")],
)
def test_a_wrong_model_is_told_before_a_missing_cluster(
    model: str, code: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", model.replace("FILE", file)]) == 1
    assert code in capsys.readouterr().err
    assert main(["plan", f"{file}:by_name"]) == 1
    assert "SW0924" in capsys.readouterr().err


@pytest.mark.slow
def test_every_row_of_a_comparison_is_a_plan(
    gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "compare", gpt, "--cluster", "cpu:4", "--batches", "4"
    names = [row["plan"] for row in json.loads(said(capsys, *words, "--json"))["rows"]]
    table = said(capsys, *words)
    begun = re.findall(r"^ +(\d+) (\S.*?) +4 .*((?:\n {7}\S.*)*)", table, re.MULTILINE)
    rows = [(number, " ".join(f"{name}{more}".split())) for number, name, more in begun]
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1)) and len(rows) > 3
    assert [name for _, name in rows] == names[: len(rows)]
    for number, name in rows:
        head = said(capsys, "plan", gpt, "--plan", f"row:{number}").splitlines()[0]
        assert head == f"plan     {name} for Gpt, 4 devices"
    plan_names = [name for _, name in rows if ", " in name]
    for name in plan_names:
        head = said(capsys, "plan", gpt, "--plan", name).splitlines()[0]
        assert head == f"plan     {name} for Gpt, 4 devices"
    out = tmp_path / "program"
    said(capsys, "emit", gpt, "--plan", "row:2", "-o", str(out))
    assert json.loads((out / "program.json").read_text())["plan"] == rows[1][1]
    step = said(capsys, "simulate", gpt, "--plan", "row:2", "--cluster", "cpu:4").splitlines()[2]
    assert step.startswith(f"Gpt under {rows[1][1]} on cpu:4, 4 devices, 4 micro-batches, ")


def test_a_row_that_is_not_there(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", gpt, "--plan", "row:1"]) == 1
    assert "SW0375" in capsys.readouterr().err
    said(capsys, "compare", gpt, "--cluster", "cpu:2", "--batches", "1")
    for word in ("row:0", "row:999", "found, 9 stages"):
        assert main(["plan", gpt, "--plan", word]) == 1
        assert "SW0375" in capsys.readouterr().err


CLUSTER = """
[device]
memory = "64 KiB"
"""


def test_what_does_not_fit_ends_with_a_status_of_its_own(
    gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from shardwright._core import cluster_of_gpus

    name, text, _ = cluster_of_gpus("Tiny", 1 << 20, 1, (7, 0), None, None, 2, 1)
    small = tmp_path / "small.toml"
    small.write_text(text if text is not None else name)
    printed = said(capsys, "simulate", gpt, "--plan", "data:2", "--cluster", str(small), status=3)
    assert "it does not fit" in printed and ": too much" in printed
    next_line = "next: without `--plan` one is looked for that fits"
    assert next_line in printed
    assert next_line in said(capsys, "plan", gpt, "--plan", "data:2", "--cluster", str(small), status=3)
    text = said(capsys, "plan", gpt, "--plan", "data:2", "--text", "--cluster", str(small), status=3)
    assert next_line not in text
    assert next_line not in said(capsys, "simulate", gpt, "--plan", "data:2", "--cluster", "h200:2")
    for words in (["plan", gpt], ["manifest", gpt]):
        said(capsys, *words, "--plan", "data:2", "--cluster", str(small), status=3)
        said(capsys, *words, "--plan", "data:2", "--cluster", "h200:2", status=0)
    said(capsys, "compare", gpt, "--cluster", str(small), "--batches", "1", status=3)


def test_sets_of_devices_are_written_as_in_plans(
    gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = gpt, "--plan", "data:4"
    text = said(capsys, "plan", *words, "--text")
    assert " on 0..4" in text
    step = said(capsys, "simulate", *words, "--cluster", "h200:4")
    assert len(re.findall(r"^0\.\.4 ", step, re.MULTILINE)) == 3
    assert "\nranks 0..4, as rank 0 does: " in said(capsys, "manifest", *words, "--cluster", "h200:4")
    said(capsys, "emit", *words, "-o", str(tmp_path / "out"))
    (program,) = (tmp_path / "out").glob("*.py")
    assert ": ranks 0..4 of 4." in program.read_text()


def test_numbers_have_units_that_fit(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    step = said(capsys, "simulate", gpt, "--plan", "data:4", "--cluster", "h200:4")
    assert re.search(r"^a step takes [\d.]+ [mu]?s, ", step)
    assert re.search(r", \d+\.\d [MG]FLOP a step$", step, re.MULTILINE)


@pytest.mark.slow
def test_the_plan_that_was_chosen_is_the_one_that_is_explained(
    gpt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = gpt, "--cluster", "cpu:4", "--batches", "4"
    chosen = json.loads(said(capsys, "plan", *words, "--json"))["plan"]
    answer = json.loads(said(capsys, "plan", *words, "--explain", "h.0.mlp.up", "--json"))
    assert answer["plan"] == chosen
    text = said(capsys, "plan", *words, "--explain", "h.0.mlp.up")
    assert "this is about the second" not in text
    if answer["of"] is None:
        assert (
            text.startswith(f"the plan that was chosen is `{chosen}`") and answer["ways"][0]["plan"] == chosen
        )
    else:
        assert chosen.startswith(answer["of"])


class _Named:
    """What a search gives of plans with names alone."""

    def __init__(self, graph: Any, names: list[str]):
        from shardwright import Plan

        self._plans = [Plan.named(graph, name, 4) for name in names]
        self.rows = [
            {"plan": name, "seconds": 1e-3 * (at + 1), "memory": (0, 1 << 20, 1 << 30), "fits": at < 2}
            for at, name in enumerate(names)
        ]

    def explain(self, at: int, most: int) -> None:
        return None

    def plan(self, at: int) -> Any:
        return self._plans[at]


def test_a_plan_with_a_name_is_explained_beside_others(gpt: str) -> None:
    from shardwright import Graph

    graph: Any = Graph(Path(gpt).read_text())
    search: Any = _Named(graph, ["data", "zero1", "megatron"])
    lines = list(explained(search, graph, "h.0.mlp.up", lambda: search))
    assert lines[0].startswith("the plan that was chosen is `data`, and splits h.0.mlp.up by `")
    chosen, other = lines[-2:]
    # `zero1` splits it as `data` does.
    assert "chosen" in chosen and chosen.endswith("data")
    assert "no room" in other and other.endswith("megatron")


REGISTERED = """
import torch
from torch import nn
import shardwright as sw

@sw.register_op("b d -> b d^")
def normalize(x):
    return x / x.sum(-1, keepdim=True).abs()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x):
        return normalize(self.up(x)).sum()

def net():
    return Net().double(), (torch.ones(4, 8).double(),)
"""


@pytest.mark.slow
def test_a_registered_function_is_verified_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kern_of_test.py").write_text(REGISTERED.replace("b d -> b d^", "b d^ -> b d^"))
    printed = said(capsys, "ops", "verify", "normalize", f"{tmp_path / 'kern_of_test.py'}:net")
    assert "calls of 1 operators" in printed and "0 not" in printed
    assert main(["ops", "verify", "normalise", f"{tmp_path / 'kern_of_test.py'}:net"]) == 1
    assert "SW0158" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command", ["simulate", "manifest", "plan", "compare", "check", "verify"])
def test_what_takes_long_has_a_bar(
    command: str,
    gpt: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Here everything takes long."""
    words = {
        "compare": [gpt, "--cluster", "cpu:2", "--batches", "1"],
        "check": [str(tmp_path / "out")],
        "verify": ["--threads", "--dtypes", "model"],
    }
    said(capsys, "emit", gpt, "--plan", "data:2", "-o", str(tmp_path / "out"))
    phases: list[str] = []
    begin = Progress.phases

    def watched(self: Progress, title: str) -> Any:
        phases.append(title)
        return begin(self, title)

    monkeypatch.setattr(Progress, "phases", watched)
    monkeypatch.setattr(sys, "stderr", Terminal())
    main([command, *words.get(command, [gpt, "--plan", "data:2", "--cluster", "cpu:2"])])
    assert phases
