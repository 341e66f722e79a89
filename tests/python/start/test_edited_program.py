"""An emitted program that somebody has edited: it runs if it is equal, and else is refused with its line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import shardwright as sw
from shardwright import demo
from shardwright.cli import main
from shardwright.errors import ShardwrightError
from shardwright.runtime import run_local

torch.set_num_threads(1)

STEPS = 3
MODEL = """
from shardwright import demo

def net():
    return demo.build(), demo.batches()[0]
"""


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small GPT of the demo, as two ranks under `megatron`; beside it the file of the model."""
    place = tmp_path_factory.mktemp("edited")
    (place / "net.py").write_text(MODEL)
    words = [
        "emit",
        f"{place / 'net.py'}:net",
        "--plan",
        "megatron",
        "--devices",
        "2",
        "-o",
        str(place / "out"),
    ]
    assert main(words) == 0
    return place / "out"


@pytest.fixture
def folder(emitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(emitted, tmp_path / "program"))


def edit(folder: Path, change: Callable[[str], str], file: str = "ranks_0_1.py") -> str:
    text = (folder / file).read_text()
    changed = change(text)
    assert changed != text, "the edit has to change something"
    (folder / file).write_text(changed)
    return changed


def train(folder: Path | None, **more: Any) -> list[float]:
    """Losses of two ranks."""
    how = {"plan": "megatron"} if folder is None else {"program": folder}
    models = [demo.build() for _ in range(2)]  # ranks are threads, and would share the generator

    def rank(rank: int, comm: Any) -> list[float]:
        data = demo.batches()[:STEPS]
        model = sw.parallelize(models[rank], data[0], comm=comm, progress=False, **how, **more)
        adamw = sw.optimizer(model, torch.optim.AdamW, lr=3e-3)
        losses = []
        for batch in data:
            losses.append(float(model.train_step(batch)))
            adamw.step()
            adamw.zero_grad()
        return losses

    return list(run_local(2, rank)[0])


def renamed(text: str) -> str:
    """A local variable of the attention has another name."""
    return re.sub(r"\bqkv\b(?=[ ,)])", "three", text).replace("qkv = ", "three = ")


def swapped(text: str) -> str:
    """Two lines that do not read each other change places."""
    match = re.search(r"^(    transpose\w* = reshape\w*\.transpose.*\n)(    reshape\w* = .*\n)", text, re.M)
    assert match is not None
    return text.replace(match[0], match[2] + match[1], 1)


@pytest.mark.slow
@pytest.mark.parametrize("change", [renamed, swapped, lambda text: swapped(renamed(text))])
def test_an_edit_that_computes_the_same_runs(folder: Path, change: Callable[[str], str]) -> None:
    edit(folder, change)
    assert train(folder) == pytest.approx(demo.single()[:STEPS], rel=1e-12)


@pytest.mark.slow
def test_it_is_a_model_like_any_other(folder: Path, tmp_path: Path) -> None:
    """Evaluation, another batch, a checkpoint: what the program is not for has one of the plan beside it."""
    edit(folder, renamed)
    batch = demo.batches()[0]
    half = tuple(x[:4] for x in batch)
    models = [demo.build() for _ in range(2)]

    def rank(rank: int, comm: Any) -> tuple[float, float, float]:
        model = sw.parallelize(models[rank], batch, comm=comm, progress=False, program=folder)
        adamw = sw.optimizer(model, torch.optim.AdamW, lr=3e-3)
        first = float(model.train_step(batch))
        adamw.step()
        sw.save(model, adamw, tmp_path / "checkpoint", {})
        model.eval()
        with torch.no_grad():
            after, of_half = float(model(*batch)), float(model(*half))
        sw.load(model, adamw, tmp_path / "checkpoint")
        return first, after, of_half

    first, after, of_half = run_local(2, rank)[0]
    assert [first, after] == pytest.approx(demo.single()[:2], rel=1e-12)
    assert of_half > 0
    (folder / "program.plan").unlink()

    def without(rank: int, comm: Any) -> None:
        model = sw.parallelize(demo.build(), batch, comm=comm, progress=False, program=folder)
        model(*half)

    with pytest.raises(ShardwrightError, match=r"SW0894(.|\n)*program\.plan"):
        run_local(2, without)


def dropped(text: str) -> str:
    return re.sub(r"run\.all_reduce\((\w+), 0\)", r"\1", text, count=1)


def other_sizes(text: str) -> str:
    """The sizes of a view are swapped."""
    return re.sub(r"\.reshape\((\d+), (\d+), (\d+), (\d+)\)", r".reshape(\1, \3, \2, \4)", text, count=1)


def not_python(text: str) -> str:
    return text.replace("torch.split(", "sorted(", 1)


def unknown_call(text: str) -> str:
    """The backward of a call that nobody makes."""
    return re.sub(r"run\.grad\(\w+, ", "run.grad(nobody, ", text, count=1)


def other_call(text: str) -> str:
    """The backward of a layer that is not there."""
    return re.sub(r"(run\.grad\(.*)at=n\)", r"\1at=n + 1)", text, count=1)


@pytest.mark.parametrize(
    ("change", "code", "quote"),
    [
        (unknown_call, "SW0606", r"`.*run\.grad\(nobody, .*\)`"),
        (other_call, "SW0606", r"`.*run\.grad\(.*at=n \+ 1\)`"),
        (dropped, "SW0505", r"`\w+ = .*`, called in line \d+"),
        (other_sizes, "SW05", r"`\w+ = \w+\.reshape\(.*\)`"),
        (not_python, "SW0606", r"`q, k, v = sorted\(.*\)`"),
    ],
)
def test_an_edit_that_computes_something_else_is_refused_with_its_line(
    folder: Path, change: Callable[[str], str], code: str, quote: str
) -> None:
    text = edit(folder, change)
    with pytest.raises(ShardwrightError) as refused:
        train(folder)
    said = str(refused.value)
    assert refused.value.code.startswith(code), said
    match = re.search(rf"at: ranks_0_1\.py:(\d+): ({quote})", said)
    assert match is not None, said
    line = text.splitlines()[int(match[1]) - 1].strip()
    assert line.startswith(match[2].split("`")[1]), (line, said)


def test_backwards_of_calls_that_are_mixed_up_are_refused(folder: Path) -> None:
    """The first layer's comes before the last one's."""
    edit(folder, lambda text: re.sub(r"(def backward(.|\n)*?)reversed\((range\(2\))\)", r"\1\3", text))
    with pytest.raises(ShardwrightError, match=r"SW05(.|\n)*at: ranks_0_1\.py:\d+: `.*run\.grad\("):
        train(folder)


@pytest.mark.slow
def test_a_function_has_its_name_in_the_tables_as_well(folder: Path) -> None:
    function = re.search(r"run\.call\((\w+),", (folder / "ranks_0_1.py").read_text())[1]  # type: ignore[index]
    edit(folder, lambda text: re.sub(rf"\b{function}\b", "start", text))
    with pytest.raises(ShardwrightError, match=f"SW0602(.|\n)*call 0 .* is `start`, and `{function}` in"):
        train(folder)
    edit(folder, lambda text: text.replace(f'"{function}"', '"start"'), "program.json")
    assert train(folder) == pytest.approx(demo.single()[:STEPS], rel=1e-12)


def test_a_fault_in_backward_names_the_file(folder: Path) -> None:
    """A gradient lacks what the other rank has of it."""
    edit(folder, lambda text: re.sub(r"(?s)(.*)run\.all_reduce\((\w+), 0\)", r"\1\2", text))
    with pytest.raises(ShardwrightError, match=r"at: ranks_0_1\.py"):
        train(folder)


def test_a_program_of_another_model_is_refused_with_what_differs(folder: Path) -> None:
    def rank(rank: int, comm: Any) -> None:
        half = tuple(x[:4] for x in demo.batches()[0])
        sw.parallelize(demo.build(), half, comm=comm, progress=False, program=folder)

    with pytest.raises(ShardwrightError, match=r"SW0893(.|\n)*-input %idx i64\[8,32\](.|\n)*\[4,32\]"):
        run_local(2, rank)


def test_a_program_for_other_ranks_or_of_another_version_is_refused(folder: Path) -> None:
    def alone(rank: int, comm: Any) -> None:
        sw.parallelize(demo.build(), demo.batches()[0], comm=comm, progress=False, program=folder)

    with pytest.raises(ShardwrightError, match="SW0705"):
        run_local(3, alone)
    edit(folder, lambda text: text.replace(f'"{sw.__version__}"', '"0.0.1"', 1), "program.json")
    with pytest.raises(ShardwrightError, match="SW0703"):
        run_local(2, alone)


@pytest.mark.parametrize(
    "more",
    [
        {"plan": "data"},
        {"devices": 2},
        {"cluster": "cpu:2"},
        {"constraints": "data"},
        {"micro_batches": "auto"},
        {"save_to": "elsewhere"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_says_how_to_plan_does_not_go_with_a_program(folder: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ShardwrightError, match=f"SW0890(.|\n)*{next(iter(more))}"):
        train(folder, **more)


def test_outputs_and_memory_are_those_that_are_asked_for(folder: Path) -> None:
    with pytest.raises(ShardwrightError, match="SW0534"):
        train(folder, inputs="local")
    with pytest.raises(ShardwrightError, match="SW0530"):
        train(folder, memory="1KiB")


@pytest.mark.processes
def test_the_command_trains_beside_one_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder, renamed)
    assert main(["run", str(folder), "--processes", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["equal"] is True and len(answer["ranks"]) == STEPS
    assert answer["ranks"] == pytest.approx(answer["one_device"], rel=1e-9)


@pytest.mark.slow
def test_the_command_refuses_what_is_not_equal_before_it_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(folder), "--threads"]) == 0
    assert "The losses are equal" in capsys.readouterr().out
    edit(folder, dropped)
    assert main(["run", str(folder), "--threads"]) == 1
    assert "error[SW0505]" in capsys.readouterr().err
    assert main(["run", str(folder), "--threads", "--processes", "3"]) == 1
    assert "error[SW0705]" in capsys.readouterr().err


def test_the_command_says_what_to_write_where_the_model_is_not_known(
    folder: Path, emitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.json").unlink()
    assert main(["run", str(folder), "--threads"]) == 1
    said = capsys.readouterr().err
    assert "error[SW0891]" in said and "sw.parallelize(model, example, program=" in said
    assert main(["run", str(folder), f"{emitted.parent / 'net.py'}:net", "--threads"]) == 0
