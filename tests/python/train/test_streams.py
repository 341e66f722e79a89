"""`shardwright train` on a stream: interrupted in the middle of an epoch, it goes on with the next sample."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

pytest.importorskip("yaml", reason="PyYAML is not installed")

import ready_python
from shardwright.train import batches
from shardwright.train.batches import Batches
from shardwright.train.config import DataConfig

EXAMPLE = Path(__file__).parents[3] / "examples" / "run_file"
needs_torchdata = pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not installed")
# Samples of an epoch, of a batch, and steps until the run is stopped: in the middle of the second epoch.
SAMPLES, BATCH, STOPPED, STEPS = 40, 8, 7, 14
# The stream says which samples are read, by whom. With workers each has a share of them.
STREAM = f"""
import os, signal
from pathlib import Path
from torch.utils.data import IterableDataset, get_worker_info
from parts import Sums

class Stream(IterableDataset):
    def __init__(self, note=""):
        self.note, self.at = note, 0

    def __iter__(self):
        worker = get_worker_info()
        first, each = (worker.id, worker.num_workers) if worker else (0, 1)
        while self.at < {SAMPLES} // each:
            number = self.at * each + first
            self.at += 1
            if self.note:
                with Path(self.note + os.environ.get("RANK", "0")).open("a") as file:
                    file.write(f"{{number}}\\n")
            yield Sums({SAMPLES})[number]
        self.at = 0

    def state_dict(self):
        return {{"at": self.at}}

    def load_state_dict(self, state):
        self.at = state["at"]

class Stop:
    def step(self, training, measured):
        if training.step == {STOPPED} and training.leads:
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in EXAMPLE.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "stream.py").write_text(STREAM)
    return tmp_path


def trained(folder: Path, processes: int, workers: int, note: str, **more: Any) -> list[dict[str, Any]]:
    """The steps of a run, or of the part of one."""
    file = f"{note}.jsonl"
    said = {
        "data": {"path": "stream.py:Stream", "arguments": {"note": note}, "collate": "parts.py:batch"},
        "steps": STEPS,
        "evaluation": None,
        "log": {"json": file},
        **more,
    }
    said["data"] |= {"batch": BATCH, "workers": workers}
    settings = [word for name, value in said.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    command = [ready_python.command(), "-m", "shardwright", "train", "run.yaml"]
    ended = subprocess.run(
        [*command, "--processes", str(processes), *settings],
        cwd=folder,
        env=ready_python.environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == (75 if "hooks" in more else 0), ended.stderr
    steps = [json.loads(line) for line in (folder / file).read_text().splitlines()]
    return [step for step in steps if "loss" in step]


@pytest.mark.processes
@pytest.mark.slow
@needs_torchdata
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_knows_its_place_goes_on_there_on_other_ranks(folder: Path, workers: int) -> None:
    """Two ranks until the second batch of the second epoch, then three: no sample is read once more."""
    whole = trained(folder, 1, workers, "whole", checkpoints={})
    saved = {"folder": "checkpoints"}
    steps = trained(folder, 2, workers, "first", checkpoints=saved, hooks=["stream.py:Stop"])
    steps += trained(folder, 3, workers, "rest", checkpoints=saved)
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert [step["epoch"] for step in steps] == [step["epoch"] for step in whole]
    assert [step["loss"] for step in steps] == pytest.approx([step["loss"] for step in whole], rel=2e-5)
    if not workers:  # which read ahead
        read = [int(line) for line in (folder / "rest2").read_text().splitlines()]
        taken = STOPPED * BATCH % SAMPLES
        # The first batch is what the model is compiled for.
        assert read[BATCH : 2 * BATCH] == list(range(taken, taken + BATCH))


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(SAMPLES)


class Placed(IterableDataset[int]):
    """Goes on where it was put, or where the last who asked had enough."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < SAMPLES:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize(
    "kind, with_torchdata",
    [
        (Numbers, False),
        pytest.param(Numbers, True, marks=needs_torchdata),
        pytest.param(Placed, True, marks=needs_torchdata),
    ],
)
def test_a_stream_goes_on_with_the_next_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, with_torchdata: bool
) -> None:
    if not with_torchdata:
        monkeypatch.setattr(batches, "_stateful_loader", lambda: None)

    def made() -> Batches:
        batches = Batches(kind(), DataConfig(batch=BATCH), 0, tmp_path)
        assert batches.first().tolist() == list(range(BATCH))
        return batches

    def taken(source: Batches, count: int) -> list[list[int]]:
        return [batch.tolist() for batch in islice(source, count)]

    epoch = [list(range(at, at + BATCH)) for at in range(0, SAMPLES, BATCH)]
    whole = (epoch * 3)[:STEPS]
    # In the middle of an epoch, and at its end.
    for stopped in (STOPPED, len(epoch)):
        first, rest = made(), made()
        assert taken(first, stopped) == whole[:stopped]
        rest.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert taken(rest, STEPS - stopped) == whole[stopped:]
