"""`shardwright train`: a run that a file describes, on real processes, interrupted and resumed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed")

import ready_python
from shardwright.errors import RuntimeFault
from shardwright.train.config import Config
from shardwright.train.reading import read
from shardwright.train.schema import schema_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "run_file"
SMALL = "model: {path: 'm.py:M'}\ndata: {path: 'd.py:D'}\nsteps: 3\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in EXAMPLE.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path


def command(folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ready_python.command(), "-m", "shardwright", "train", "run.yaml", *arguments],
        cwd=folder,
        env=ready_python.environment(),
        capture_output=True,
        text=True,
        timeout=240,
        **more,
    )


def losses(folder: Path, file: str = "steps.jsonl") -> list[float]:
    return [line["loss"] for line in lines_of(folder / file) if "loss" in line]


@pytest.mark.processes
@pytest.mark.slow
def test_a_run_is_that_of_one_process_and_goes_on_where_it_was(folder: Path) -> None:
    """Stopped after ten steps of two ranks, in the middle of an epoch, it goes on with three, sharded."""
    whole = command(folder, "--set", "log.json=whole.jsonl", "--set", "checkpoints.folder=whole")
    assert whole.returncode == 0, whole.stderr
    assert re.search(r"step 20: evaluation loss", whole.stdout)
    add_hook(folder)
    first = command(
        folder,
        "--processes",
        "2",
        "--set",
        "steps=20",
        "--set",
        "hooks=[parts_hook.py:Stop]",
    )
    assert first.returncode == 75, first.stderr
    assert "stopped by a signal after step 10" in first.stdout
    rest = command(folder, "--processes", "3", "--set", "plan.name=zero3")
    assert rest.returncode == 0, rest.stderr
    assert "resumed from" in rest.stdout and "10 of 20 steps are done" in rest.stdout
    assert losses(folder) == pytest.approx(losses(folder, "whole.jsonl"), rel=2e-5)
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == ["best.json", "step-00000010", "step-00000020"]


def add_hook(folder: Path) -> None:
    """One rank alone is sent a signal, after its tenth step."""
    (folder / "parts_hook.py").write_text(
        "import os, signal\n"
        "class Stop:\n"
        "    def step(self, training, measured):\n"
        "        if training.step == 10 and training.model.comm.rank == 1:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
    )


@pytest.mark.processes
@pytest.mark.slow
def test_a_run_that_is_killed_loses_no_complete_checkpoint(folder: Path) -> None:
    process = subprocess.Popen(
        [ready_python.command(), "-m", "shardwright", "train", "run.yaml", "--processes", "2",
         "--set", "steps=100000", "--set", "checkpoints.every=5"],
        cwd=folder,
        env=ready_python.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    places = folder / "checkpoints"
    deadline = time.monotonic() + 200
    while not list(places.glob("step-*/.metadata")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2)
    half = places / "step-99999999"
    half.mkdir()
    (half / "__0_0.distcp").write_bytes(b"half")
    complete = max(int(path.parent.name[5:]) for path in places.glob("step-*/.metadata"))
    ended = command(folder, "--set", f"steps={complete + 2}", "--set", "evaluation.every=1000000")
    assert ended.returncode == 0, ended.stderr
    assert f"{complete} of {complete + 2} steps are done" in ended.stdout


@pytest.mark.slow
def test_a_check_needs_no_devices(folder: Path) -> None:
    ended = command(folder, "--check", "--devices", "4", "--set", "plan={name: zero3, cluster: 'cpu:4'}")
    assert ended.returncode == 0, ended.stderr
    assert "under zero3 on 4 devices: proved equal to the model" in ended.stdout
    assert "a step takes" in ended.stdout and "it fits" in ended.stdout


@pytest.mark.slow
def test_a_check_chooses_the_plan_where_a_run_would(folder: Path) -> None:
    """`auto`, with the number of micro-batches too; for a cluster only, since no device is seen."""
    cluster = ("--set", "plan={name: auto, cluster: 'h100:4', micro_batches: auto}")
    ended = command(folder, "--check", *cluster)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"under .+ on 4 devices: proved equal to the model", ended.stdout)
    assert "a step takes" in ended.stdout and "it fits" in ended.stdout
    without = command(folder, "--check", "--devices", "4", "--set", "plan.name=auto")
    assert without.returncode == 1 and "error[SW0855]" in without.stderr


@pytest.mark.slow
def test_each_step_says_how_much_of_the_devices_it_used(folder: Path) -> None:
    """The graph says how many operations a model has, the cluster the peak: without one it is not said."""
    short = ("--set", "steps=2", "--set", "evaluation.every=9", "--set", "checkpoints.folder=none")
    ended = command(folder, *short, "--set", "plan.cluster=cpu:1", "--set", "log={json: known.jsonl}")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"tokens/s, MFU \d", ended.stdout)
    steps = [line for line in lines_of(folder / "known.jsonl") if "loss" in line]
    at_peak = [line["mfu"] * line["seconds"] for line in steps]
    assert at_peak == pytest.approx([at_peak[0]] * 2, rel=1e-9)
    assert 0 < at_peak[0] < steps[0]["predicted_seconds"], "a step at the devices' peak is the shortest"
    unknown = command(folder, *short, "--set", "log={json: unknown.jsonl}", "--set", "resume=never")
    assert unknown.returncode == 0, unknown.stderr
    assert all("mfu" not in line for line in lines_of(folder / "unknown.jsonl"))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_has_the_plan_and_a_picture_of_the_step_beside_it(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    short = ("--set", "steps=2", "--set", "evaluation.every=9", "--set", "checkpoints.folder=none")
    ended = command(folder, *short, "--set", "plan.cluster=cpu:1", "--set", "log.tensorboard=events")
    assert ended.returncode == 0, ended.stderr
    events = EventAccumulator(str(folder / "events"))
    events.Reload()
    [text] = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("plan/text_summary")]
    assert "Letters under `data" in text and "is predicted to take" in text and "A step needs" in text
    assert "`timeline.svg` in this log's folder" in text
    assert [event.step for event in events.Scalars("loss")] == [1, 2]
    assert (folder / "events" / "timeline.svg").read_text().startswith("<svg")
    assert list((folder / "events" / "program").glob("*.py"))


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


REFUSED = {
    "cluster": (SMALL + "plan: {cluster: dgx-h1000:8x1}\n", "run.yaml:4:17", "`plan.cluster` is", "h100"),
    "misspelt": (SMALL + "optimiser: {lr: 1}\n", "run.yaml:4:1", "`optimiser` is unknown", "optimizer"),
    "inner": (SMALL + "optimizer: {rate: 1}\n", "run.yaml:4:13", "`optimizer.rate` is unknown", "lr"),
    "kind": (SMALL + "seed: many\n", "run.yaml:4:7", "`seed` is 'many'", "a whole number"),
    "boolean": (SMALL + "seed: true\n", "run.yaml:4:7", "`seed` is", "a whole number"),
    "twice": (SMALL + "steps: 4\n", "run.yaml:4:1", "`steps` is said twice", ""),
    "missing": ("data: {path: 'd.py:D'}\n", "run.yaml:1:1", "`model` is missing", ""),
    "list": (SMALL + "log: [1]\n", "run.yaml:4:6", "`log` is a list", "a mapping"),
    "variable": (SMALL + "seed: ${NOT_SET_ANYWHERE}\n", "run.yaml:4:7", "is not set", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_at_its_place(tmp_path: Path, name: str) -> None:
    text, place, what, more = REFUSED[name]
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(RuntimeFault) as raised:
        read(tmp_path / "run.yaml")
    assert raised.value.code == "SW0851"
    assert str(raised.value.place).endswith(place)
    assert what in str(raised.value) and more in str(raised.value)


@pytest.mark.parametrize("text", ["a: [", "a: b: c"])
def test_what_is_no_yaml_is_refused_at_its_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(RuntimeFault, match=r"this is no YAML"):
        read(tmp_path / "run.yaml")


def test_the_command_line_wins_and_variables_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW_LONG", "7")
    (tmp_path / "run.yaml").write_text(SMALL.replace("steps: 3", "steps: ${HOW_LONG}") + "seed: ${NONE:5}\n")
    config = read(tmp_path / "run.yaml", ["optimizer.lr=1e-4", "plan={name: zero3}", "data.text=a.txt"])
    assert (config.steps, config.seed, config.optimizer.lr, config.plan.name) == (7, 5, 1e-4, "zero3")
    assert config.data.text == ["a.txt"]
    with pytest.raises(RuntimeFault, match="--set"):
        read(tmp_path / "run.yaml", ["optimizer.lr=quick"])


def test_the_schema_has_all_options() -> None:
    schema = schema_of(Config)
    assert set(schema["properties"]) == {field.name for field in fields(Config)}
    assert schema["required"] == ["model", "data"]
    assert schema["properties"]["optimizer"]["properties"]["lr"]["type"] == "number"
