"""`sw.save(..., wait=False)`: training goes on while a thread writes what was there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shardwright as sw
from equality import assert_equal
from shardwright.checkpoint import behind
from shardwright.errors import RuntimeFault
from shardwright.runtime import ParallelModule
from test_checkpoint import BEFORE, adamw, batches, bundle, model, resume, steps, uninterrupted, world
from test_checkpoint_faults import contents

torch.set_num_threads(1)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No rank writes before it is set."""
    opened, write = threading.Event(), behind.write

    def waiting(*given: Any) -> Any:
        assert opened.wait(60)
        return write(*given)

    monkeypatch.setattr(behind, "write", waiting)
    return opened


def trained(path: Path, after: Callable[[Any, ParallelModule, Any], Any]) -> list[Any]:
    """Saves after some steps, and goes on `after` that."""
    made, given = bundle("gpt", "data", 2), batches(model("gpt")[1])

    def body(parallel: ParallelModule) -> Any:
        optimizer = adamw(parallel)
        steps(parallel, optimizer, given[:BEFORE])
        saving = sw.save(parallel, optimizer, path, {"at": BEFORE}, wait=False)
        return after(saving, parallel, optimizer)

    return world(made, "gpt", body)


def test_what_is_saved_is_what_was_there_though_training_goes_on(
    tmp_path: Path, gate: threading.Event
) -> None:
    given = batches(model("gpt")[1])

    def after(saving: Any, parallel: ParallelModule, optimizer: Any) -> None:
        assert not saving.done()
        steps(parallel, optimizer, given[BEFORE:])
        for group in optimizer.param_groups:
            group["lr"] = 7.0
        assert not saving.done() and not (tmp_path / ".metadata").exists()
        gate.set()
        assert saving.wait() == tmp_path and saving.done()

    trained(tmp_path, after)
    assert_equal(resume(bundle("gpt", "megatron", 2), "gpt", tmp_path), uninterrupted("gpt"))


def test_the_next_save_and_a_load_wait_for_the_one_before(tmp_path: Path, gate: threading.Event) -> None:
    def after(saving: Any, parallel: ParallelModule, optimizer: Any) -> bool:
        threading.Timer(0.3, gate.set).start()
        sw.save(parallel, optimizer, tmp_path / "next", wait=False)
        was_there = bool(saving.done())
        assert sw.load(parallel, optimizer, tmp_path / "next") == {}
        return was_there

    assert trained(tmp_path / "first", after) == [True, True]
    assert (tmp_path / "first" / ".metadata").exists()


def test_what_goes_wrong_on_a_rank_is_raised_on_all_and_the_old_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "one"
    trained(folder, lambda saving, *_: saving.wait())
    before, write = contents(folder), behind.write

    def full(path: Path, rank: int, *given: Any) -> Any:
        if rank == 1:
            raise RuntimeFault("SW0741", "the disk is full")
        return write(path, rank, *given)

    monkeypatch.setattr(behind, "write", full)

    def after(saving: Any, parallel: ParallelModule, optimizer: Any) -> list[str]:
        with pytest.raises(RuntimeFault, match="SW0741") as first:
            saving.wait()
        monkeypatch.setattr(behind, "write", write)
        sw.save(parallel, optimizer, tmp_path / "other")
        return [first.value.what]

    assert trained(folder, after) == [["the disk is full"]] * 2
    left = contents(folder)
    assert {name: left[name] for name in before} == before


def test_what_nobody_waited_for_is_told_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> Any:
        raise RuntimeFault("SW0741", "the disk is full")

    monkeypatch.setattr(behind, "write", full)

    def after(saving: Any, parallel: ParallelModule, optimizer: Any) -> None:
        with pytest.raises(RuntimeFault, match="the disk is full"):
            sw.save(parallel, optimizer, tmp_path)

    trained(tmp_path, after)


def in_process(rank: int, path: Path) -> None:
    torch.manual_seed(0)
    parallel = sw.parallelize(nn.Sequential(nn.Linear(8, 16), _Loss()), (torch.ones(4, 8),), plan="data")
    sw.save(parallel, None, path, {"rank": rank}, wait=False)


class _Loss(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


@pytest.mark.processes
def test_processes_end_when_the_checkpoint_is_complete(tmp_path: Path) -> None:
    sw.launch(in_process, 2, (tmp_path,), timeout=200)
    module = nn.Sequential(nn.Linear(8, 16), _Loss())
    assert sw.load(module, None, tmp_path) == {"rank": 0}
    torch.manual_seed(0)
    assert torch.equal(module[0].weight, nn.Linear(8, 16).weight)


def test_a_model_of_one_device_saves_behind_its_training(tmp_path: Path, gate: threading.Event) -> None:
    module = nn.Linear(4, 4)
    kept = module.weight.detach().clone()
    sw.save(module, None, tmp_path, wait=False)
    with torch.no_grad():
        module.weight.zero_()
    gate.set()
    sw.load(module, None, tmp_path)
    assert torch.equal(module.weight, kept)


def test_what_is_saved_beside_the_model_is_what_was_there(tmp_path: Path, gate: threading.Event) -> None:
    module, average = nn.Linear(4, 4), torch.ones(4)
    sw.save(module, None, tmp_path, {"average": average}, wait=False)
    average.zero_()
    gate.set()
    assert torch.equal(sw.load(module, None, tmp_path)["average"], torch.ones(4))
