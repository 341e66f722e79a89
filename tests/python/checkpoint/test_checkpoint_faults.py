"""What goes wrong around checkpoints: full disks, killed ranks, damaged files, other models."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
import shardwright as sw
from equality import assert_equal
from shardwright.checkpoint import folder
from shardwright.runtime import ParallelModule
from shardwright.start.compiling import Bundle
from test_checkpoint import (
    BEFORE,
    adamw,
    batches,
    bundle,
    finished,
    resume,
    save_after,
    steps,
    uninterrupted,
    world,
)

torch.set_num_threads(1)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_disk_that_fills_up_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    made = bundle("gpt", "data", 3)
    save_after(made, "gpt", tmp_path)
    before = contents(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(len(x) for x in before.values()) // 2, hard))
    try:
        with pytest.raises(sw.RuntimeFault) as refused:
            save_after(made, "gpt", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.code == "SW0741"
    assert "File too large" in str(refused.value)
    assert contents(tmp_path) == before
    assert_equal(resume(made, "gpt", tmp_path), uninterrupted("gpt"))


@pytest.mark.parametrize("file", ["__1_10.distcp", ".metadata.tmp"])
def test_one_rank_that_cannot_write_stops_all(file: str, tmp_path: Path, monkeypatch: Any) -> None:
    made = bundle("mlp", "data", 3)
    save_after(made, "mlp", tmp_path)
    before = contents(tmp_path)
    opened = folder._Folder.create_stream

    def full(self: Any, path: Any, mode: str) -> Any:
        if Path(path).name == file:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(self, path, mode)

    errors: list[Any] = []

    def body(parallel: ParallelModule) -> None:
        with pytest.raises(sw.RuntimeFault) as refused:
            sw.save(parallel, adamw(parallel), tmp_path)
        errors.append(str(refused.value))

    with monkeypatch.context() as patched:
        patched.setattr(folder._Folder, "create_stream", full)
        world(made, "mlp", body)
    assert len(errors) == 3
    assert all(error.startswith("error[SW0741]: the checkpoint cannot be written to") for error in errors)
    assert all("No space left on device" in error for error in errors)
    # What the other ranks had written is left over until the next save.
    after = contents(tmp_path)
    assert before.items() <= after.items()
    assert_equal(resume(made, "mlp", tmp_path), uninterrupted("mlp"))
    save_after(made, "mlp", tmp_path)
    assert len(contents(tmp_path)) == len(before)
    assert_equal(resume(made, "mlp", tmp_path), uninterrupted("mlp"))


def test_a_second_save_takes_the_place_of_the_first(tmp_path: Path) -> None:
    made = bundle("mlp", "data", 2)
    (tmp_path / "notes.txt").write_text("somebody's")
    save_after(bundle("mlp", "data", 4), "mlp", tmp_path)
    save_after(made, "mlp", tmp_path)
    assert sorted(contents(tmp_path)) == [".metadata", "__0_10.distcp", "__1_10.distcp", "notes.txt"]
    assert_equal(resume(made, "mlp", tmp_path), uninterrupted("mlp"))


def refusal(made: Bundle, name: str, path: Path, optimizer: Any = adamw) -> str:
    """The same error on all ranks, and no value has changed."""
    errors: list[str] = []

    def body(parallel: ParallelModule) -> None:
        before = [shard.data.clone() for shard in parallel.shards.held]
        stepping = optimizer(parallel)
        with pytest.raises(sw.RuntimeFault) as refused:
            sw.load(parallel, stepping, path)
        errors.append(str(refused.value))
        assert all(torch.equal(a, b.data) for a, b in zip(before, parallel.shards.held, strict=True))
        assert not stepping.state

    world(made, name, body)
    assert len(errors) == made.devices
    assert len(set(errors)) == 1
    return errors[0].replace(str(path), "HERE")


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    save_after(bundle("resnet", "data", 2), "resnet", tmp_path)
    text = refusal(bundle("mlp", "data", 3), "mlp", tmp_path)
    assert text.startswith(
        "error[SW0747]: the checkpoint HERE is of another model\n  why: missing: layers.0.up."
    )
    assert "unknown: bn1.bias, bn1.num_batches_tracked, bn1.running_mean" in text


def test_other_sizes_are_refused_by_name(tmp_path: Path) -> None:
    save_after(bundle("mlp", "data", 2, hidden=48), "mlp", tmp_path, hidden=48)
    text = refusal(bundle("mlp", "data", 3), "mlp", tmp_path)
    assert "different: layers.0.up.weight is (48, 32), the model has (64, 32)" in text


def test_files_that_are_cut_or_missing_are_named(tmp_path: Path) -> None:
    made = bundle("mlp", "data", 3)
    save_after(made, "mlp", tmp_path)
    for name, length in (
        ("__1_0.distcp", None),
        ("__2_0.distcp", 1000),
        (".metadata", 100),
        (".metadata", None),
    ):
        file = tmp_path / name
        whole = file.read_bytes()
        file.unlink()
        if length is not None:
            file.write_bytes(whole[:length])
        text = refusal(made, "mlp", tmp_path)
        assert name in text, text
        assert text.startswith("error[SW0745]" if "distcp" in name else "error[SW0742]")
        file.write_bytes(whole)
    damaged = tmp_path / "__1_0.distcp"
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    assert "the file __1_0.distcp of the checkpoint HERE is damaged" in refusal(made, "mlp", tmp_path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    made = bundle("mlp", "data", 2)
    file = tmp_path / "file"
    file.write_text("text")
    assert refusal(made, "mlp", file) == (
        "error[SW0742]: HERE is no checkpoint\n"
        "  why: it is a file\n"
        "  help: name the folder that `shardwright.save` was given"
    )
    assert "there is nothing of this name" in refusal(made, "mlp", tmp_path / "nowhere")
    assert "the folder has no .metadata" in refusal(made, "mlp", tmp_path)
    with pytest.raises(sw.RuntimeFault, match="it is a file"):
        sw.save(nn.Linear(2, 2), None, file)


def test_a_table_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(os.getcwd).replace(b"getcwd", b"getpid"))
    assert "does not belong there" in refusal(bundle("mlp", "data", 2), "mlp", tmp_path)


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    made = bundle("mlp", "data", 2)
    save_after(made, "mlp", tmp_path)
    text = refusal(made, "mlp", tmp_path, lambda model: sw.optimizer(model, torch.optim.AdamW, lr=1.0))
    assert text.startswith("error[SW0746]: the checkpoint's optimizer has other parameter groups")
    world(made, "mlp", lambda parallel: sw.save(parallel, None, tmp_path) and None)
    assert "has no optimizer" in refusal(made, "mlp", tmp_path)


def test_an_optimizer_of_another_model_is_not_saved(tmp_path: Path) -> None:
    strange = torch.optim.SGD(nn.Linear(3, 5).parameters(), lr=0.1)
    with pytest.raises(sw.RuntimeFault, match=r"SW0744.*not the model's"):
        sw.save(nn.Linear(2, 2), strange, tmp_path)
    assert not list(tmp_path.iterdir())


def test_extra_that_is_not_plain_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(sw.RuntimeFault) as refused:
        sw.save(nn.Linear(2, 2), None, tmp_path, {"a": [1, {"b": object()}]})
    assert str(refused.value) == (
        "error[SW0743]: extra['a'][1]['b'] cannot be saved\n"
        "  why: a builtins.object is not plain data, and a checkpoint runs no code when it is read\n"
        "  help: save numbers, strings, tensors, and lists and dicts of them;"
        " or an object with a `state_dict()`"
    )
    assert not list(tmp_path.iterdir())


def test_plain_data_comes_back(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    extra = {
        "numbers": [1, 2.5, True, None, 1 << 70, numpy.float64(0.5), float("inf")],
        "nested": {"tuple": (1, "two"), 3: b"bytes", "set": {1, 2}},
        "types": [torch.bfloat16, torch.Size([1, 2]), torch.device("cpu"), 1j],
    }
    sw.save(nn.Linear(2, 2), None, tmp_path, {**extra, "tensor": torch.arange(3)})
    loaded = sw.load(nn.Linear(2, 2), None, tmp_path)
    assert torch.equal(loaded.pop("tensor"), torch.arange(3))
    assert loaded == extra


# ---- real processes --------------------------------------------------------------------------------


def train_in_process(rank: int, plan: str, path: str, mode: str) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Trains, saves, and is killed while it saves again; or resumes."""
    module, args = models.gpt()
    parallel = sw.parallelize(module, args, plan=plan)
    optimizer, given = adamw(parallel), batches(args)
    if mode == "save":
        steps(parallel, optimizer, given[:BEFORE])
        sw.save(parallel, optimizer, path, {"at": BEFORE})
        sw.save(parallel, optimizer, path, {"at": BEFORE})
        if rank == 0:
            torch.save(contents(Path(path)), f"{path}.before")
        steps(parallel, optimizer, given[:1])
        kill_after_half(rank)
        sw.save(parallel, optimizer, path, {"at": 0})
    extra = sw.load(parallel, optimizer, path)
    return steps(parallel, optimizer, given[extra["at"] :]), parallel.full_state_dict()


def kill_after_half(rank: int) -> None:
    """Rank 1 dies when it has written half of its chunks."""
    resolve = folder._Planner.resolve_data

    def deadly(self: Any, item: Any) -> Any:
        self.items[item.index]
        self.count = getattr(self, "count", 0) + 1
        if rank == 1 and self.count > len(self.items) // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return resolve(self, item)

    folder._Planner.resolve_data = deadly  # type: ignore[method-assign]


@pytest.mark.processes
def test_a_rank_killed_while_it_saves_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    with pytest.raises(sw.RuntimeFault, match="killed by signal 9"):
        sw.launch(train_in_process, 4, ("data:2 x megatron:2", path, "save"), timeout=400)
    before, after = torch.load(f"{path}.before", weights_only=False), contents(Path(path))
    assert before.items() <= after.items()
    assert after.keys() - before.keys(), "nothing was being written"
    losses, full = sw.launch(train_in_process, 2, ("data", path, "resume"), timeout=200)
    expected = uninterrupted("gpt")
    assert_equal(finished(losses, full, {}), expected)
