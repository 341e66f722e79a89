"""Lightning's trainer with our strategy: the losses, metrics, checkpoints of its own on one device."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import ready_python

MODULES = ("lightning.pytorch", "lightning.pytorch.demos", "torchmetrics")
RUNS = Path(__file__).parents[1] / "lightning_runs.py"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("lightning") is None, reason="lightning is not installed: the extra `lightning`"
    ),
]

ALIKE = [
    "everything data",
    "everything megatron",
    "accumulated",
    "cut",
    "counts",
    "by value",
    "adagrad",
    "64-true",
    "keeps",
    "index",
    "metric",
    "adversaries",
    "boring",
    "transformer",
    "stops",
]
ROUNDED = {"bf16-true": 0.02, "bf16-mixed": 1e-3}
# In the order that they run in: a run that resumes needs those that have stopped.
ALONE = [*(name for name in ALIKE if name != "everything megatron"), *ROUNDED, "resumes"]
TOGETHER = [*ALIKE, *ROUNDED, "refused", "resumes"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All runs, each in one process and on two ranks: two starts."""
    made = tmp_path_factory.mktemp("lightning")
    for ranks, names in ((0, [name for name in ALONE if name != "resumes"]), (2, TOGETHER), (0, ["resumes"])):
        ended = _run([str(RUNS), str(made), str(ranks), *names])
        assert ended.returncode == 0, ended.stderr[-3000:]
    yield made


def _run(arguments: list[str]) -> Any:
    return subprocess.run(
        [ready_python.command(MODULES), *arguments],
        env=ready_python.environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def outcome_of(folder: Path, name: str, ranks: int) -> Any:
    result = json.loads((folder / f"{name}-{ranks}.json").read_text())
    assert "failed" not in result, result
    return result


def close(ours: Any, theirs: Any, at: str = "", within: float = 2e-6) -> None:
    """The same structure, and numbers that differ by rounding."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), at
        for key in theirs:
            close(ours[key], theirs[key], f"{at}.{key}", within)
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), at
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            close(*pair, f"{at}[{number}]", within)
    elif isinstance(theirs, str):
        assert Path(ours).name == Path(theirs).name, at
    else:
        assert ours == pytest.approx(theirs, rel=within, abs=within), at


@pytest.mark.parametrize("name", [name for name in ALIKE if name != "accumulated"])
def test_a_run_on_two_ranks_is_the_run_on_one_device(folder: Path, name: str) -> None:
    plain = "everything data" if name.startswith("everything") else name
    close(outcome_of(folder, name, 2), outcome_of(folder, plain, 0))


@pytest.mark.parametrize("name", ROUNDED)
def test_a_precision_of_lightning_is_that_of_the_program(folder: Path, name: str) -> None:
    ours, theirs = outcome_of(folder, name, 2)["losses"], outcome_of(folder, name, 0)["losses"]
    assert ours == pytest.approx(theirs, abs=ROUNDED[name])
    assert theirs != pytest.approx(outcome_of(folder, "metric", 0)["losses"], abs=1e-6)


def test_accumulated_batches_go_through_a_pipeline_together(folder: Path) -> None:
    """The loss of a batch is known with the last of them, and is their mean; the last window is short."""
    ours, theirs = outcome_of(folder, "accumulated", 2), outcome_of(folder, "accumulated", 0)
    close(ours["state"], theirs["state"])
    losses = theirs["losses"]
    for start, window in ((0, slice(0, 3)), (3, slice(3, 4)), (4, slice(4, 7)), (7, slice(7, 8))):
        expected = sum(losses[window]) / len(losses[window])
        assert ours["losses"][window][-1] == pytest.approx(expected, rel=2e-6), start
        assert all(loss != loss for loss in ours["losses"][window][:-1])


def test_a_run_resumes_from_lightnings_checkpoint_and_lightning_from_ours(folder: Path) -> None:
    ours, theirs = outcome_of(folder, "resumes", 2), outcome_of(folder, "resumes", 0)
    assert ours.keys() == theirs.keys() == {"stops-0", "stops-2"}
    close(ours, {"stops-0": theirs["stops-0"], "stops-2": theirs["stops-0"]})
    close(theirs["stops-2"], theirs["stops-0"])


def test_a_checkpoint_loads_in_plain_lightning(folder: Path) -> None:
    from lightning_runs import Everything

    ours, theirs = outcome_of(folder, "everything megatron", 2), outcome_of(folder, "everything data", 0)
    one = Everything.load_from_checkpoint(ours["best"]).state_dict()
    other = Everything.load_from_checkpoint(theirs["best"]).state_dict()
    assert list(one) == list(other)
    for name, value in other.items():
        torch.testing.assert_close(one[name], value)


def test_what_cannot_be_is_refused(folder: Path) -> None:
    assert outcome_of(folder, "refused", 2) == {
        "16-true": "SW0870",
        "sampler": "SW0874",
        "no child": "SW0877",
        "by hand": "SW0878",
        "an option": "SW0876",
        "stages, not pure": "SW0879",
        "stages, more": "SW0872",
        "iterator": "SW0873",
    }


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from lightning_runs import *
module = Plain()
made = L.Trainer(strategy=ShardwrightStrategy("zero3", progress=False), devices=2, max_epochs=1, **QUIET)
made.fit(module, DataLoader(rows(32), 8, shuffle=True))
if made.is_global_zero:
    print("on", made.world_size, "ranks:", module.losses)
"""


def test_lightning_starts_the_processes_itself(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(tests=str(RUNS.parent)))
    ended = _run([str(script)])
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "on 2 ranks: [1." in ended.stdout
