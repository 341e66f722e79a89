"""How many micro-batches a step has, where nobody says that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import models
import shardwright as sw
from shardwright.cli import main
from shardwright.errors import RuntimeFault
from shardwright.runtime import run_local
from shardwright.start import micro_batches
from shardwright.start.micro_batch_search import parts_of

torch.set_num_threads(1)

FILE = """
import torch
from shardwright import demo

def small():
    return demo.build(), demo.batches()[0]

class Flipped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return (self.layer(x) * x.flip(0)).sum()

def uncut():
    return Flipped(), (torch.ones(8, 4),)
"""
ROOMY = """
[[nodes]]
devices = "d:2"
link = { bandwidth = "1 GB/s", latency = "1 us" }

[devices.d]
memory = "MEMORY"
bandwidth = "1 TB/s"
peak = { f32 = "1 TFLOP/s", f64 = "1 TFLOP/s" }
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "cut.py").write_text(FILE)
    return f"{tmp_path / 'cut.py'}:"


def cluster(folder: Path, memory: str) -> str:
    path = folder / "here.toml"
    path.write_text(ROOMY.replace("MEMORY", memory))
    return str(path)


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main((*words, "--json")) == 0
    return json.loads(capsys.readouterr().out)


def test_parts_divide_the_batch_and_differ_by_more_than_one() -> None:
    assert parts_of(64) == [1, 2, 4, 8, 16, 32, 64]
    assert parts_of(12) == [1, 2, 4, 12] and parts_of(7) == [1, 7] and parts_of(1) == [1]
    assert parts_of(1000) == [1, 2, 4, 8, 20, 40]


# Of the model of `small`, by the shapes of what it is given.
CAPTURED: dict[str, Any] = {}


@pytest.fixture
def captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command captures the same model, in parts of the same sizes."""
    capture = micro_batches.captured_model

    def once(module: Any, *example: Any, **capturing: Any) -> Any:
        key = repr([[x.shape for x in pytree.tree_leaves(example)], capturing])
        if key not in CAPTURED:
            CAPTURED[key] = capture(module, *example, **capturing)
        return CAPTURED[key]

    monkeypatch.setattr(micro_batches, "captured_model", once)


@pytest.mark.slow
@pytest.mark.usefixtures("captured_once")
@pytest.mark.parametrize("memory", ["1 GB", "2800 KB", "2300 KB"])
def test_as_many_as_the_best_of_all(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path, memory: str
) -> None:
    on = "--cluster", cluster(tmp_path, memory)
    rows = [row for row in answer_of(capsys, "compare", model + "small", *on)["rows"] if row["fits"]]
    best = min(row["seconds"] for row in rows)
    answer = answer_of(capsys, "plan", model + "small", *on)
    assert answer["step"]["seconds"] == pytest.approx(best, rel=1e-12)
    assert answer["micro_batches"] in {row["micro_batches"] for row in rows if row["seconds"] == best}
    assert (answer["micro_batches"] == 1) == (memory == "1 GB")
    assert main(("plan", model + "small", *on)) == 0
    said = capsys.readouterr().out
    assert f"the batch of 8 in {answer['micro_batches']} micro-batches of" in said
    simulated = answer_of(capsys, "simulate", model + "small", *on)
    assert simulated["seconds"] == answer["step"]["seconds"]
    assert simulated["micro_batches"] == answer["micro_batches"]


@pytest.mark.slow
def test_who_says_how_many_gets_so_many(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    on = "--cluster", cluster(tmp_path, "1 GB")
    for words, many in [(("--micro-batches", "4"), 4), (("--batches", "3"), 3)]:
        assert answer_of(capsys, "plan", model + "small", *on, *words)["micro_batches"] == many
        assert main(("plan", model + "small", *on, *words)) == 0
        assert "the batch of" not in capsys.readouterr().out


def test_a_batch_that_cannot_be_cut_is_whole(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    on = "--cluster", cluster(tmp_path, "1 GB")
    assert answer_of(capsys, "plan", model + "uncut", *on)["micro_batches"] == 1
    assert main(("plan", model + "uncut", *on)) == 0
    assert "the batch of 8 in 1 micro-batches of 8; in 4 parts it cannot be cut" in capsys.readouterr().out


@pytest.mark.slow
def test_what_fits_in_no_way_is_said_of_the_smallest(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    assert main(("plan", model + "small", "--cluster", cluster(tmp_path, "100 KB"))) == 1
    said = capsys.readouterr().err
    assert "SW0920" in said and "that was tried fits into memory" in said


def test_a_deadline_is_for_all_of_them(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    answer = answer_of(
        capsys, "plan", model + "small", "--cluster", cluster(tmp_path, "1 GB"), "--deadline", "0"
    )
    assert answer["micro_batches"] >= 1 and answer["step"]["seconds"] > 0


@pytest.mark.slow
def test_a_model_is_trained_with_as_many_as_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))
    module, given = models.gpt(batch=8)
    path = cluster(tmp_path, "1200 KB")

    def body(_: int, comm: Any) -> Any:
        options = {"cluster": path, "comm": comm, "progress": False}
        here = sw.parallelize(module, given, micro_batches="auto", **options)
        parts = here._micro_batches
        return 8 if parts is None else parts.rows, here.train_step(given)

    expected = module(*given)[1].detach()
    first = run_local(2, body)
    for rows, loss in first:
        assert rows < 8
        torch.testing.assert_close(loss, expected)
    # What was chosen is known at the next start.
    monkeypatch.setattr("shardwright.start.starter.best_number", None)
    assert run_local(2, body)[0][0] == first[0][0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"plan": "data"}, 'plan="auto"'),
        ({"inputs": "local"}, 'inputs="global"'),
        ({"micro_batches": "many"}, "does not cut this batch evenly"),
    ],
)
def test_refusals(options: dict[str, Any], why: str) -> None:
    module, given = models.gpt(batch=4)

    def body(_: int, comm: Any) -> None:
        asked: dict[str, Any] = {"micro_batches": "auto", "comm": comm, "progress": False, **options}
        sw.parallelize(module, given, **asked)

    with pytest.raises(RuntimeFault, match="SW0845") as caught:
        run_local(1, body)
    assert why in str(caught.value)
