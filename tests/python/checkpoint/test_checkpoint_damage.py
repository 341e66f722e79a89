"""Damaged checkpoints: a flipped bit anywhere, or a shorter file, is refused or changes nothing."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
import shardwright as sw
from equality import assert_equal
from shardwright.checkpoint import folder
from shardwright.checkpoint.metadata import read_metadata
from shardwright.cli import main
from test_checkpoint import (
    BEFORE,
    batches,
    bundle,
    plain_adamw,
    resume,
    save_after,
    steps,
    uninterrupted,
)
from test_checkpoint_faults import contents, refusal

torch.set_num_threads(1)


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def all_of(module: nn.Module, optimizer: torch.optim.Optimizer, extra: Any) -> list[Any]:
    """Everything that a load may change."""
    streams = [torch.get_rng_state(), random.getstate()]
    groups = [{**group, "params": None} for group in optimizer.param_groups]
    return [dict(module.state_dict()), optimizer.state_dict()["state"], groups, extra, streams]


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_same, a, b))
    return bool(a == b)


@pytest.mark.slow
def test_no_damaged_checkpoint_loads_altered(tmp_path: Path) -> None:
    """Saved by three ranks, loaded by one, which so reads all of each file but others' random streams."""
    save_after(bundle("mlp", "data:3", 3), "mlp", tmp_path)
    kept = contents(tmp_path)
    chance = random.Random(0)
    module, _ = models.mlp()
    optimizer = plain_adamw(module)
    extra = sw.load(module, optimizer, tmp_path)
    expected = all_of(module, optimizer, extra)
    refused = 0
    for case in range(300):
        name = sorted(kept)[case % len(kept)]
        data, bit = kept[name], chance.randrange(8 * len(kept[name]))
        damaged = data[: bit // 8] if case % 5 == 4 else flipped(data, bit)
        (tmp_path / name).write_bytes(damaged)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                extra = sw.load(module, optimizer, tmp_path)
        except sw.RuntimeFault as error:
            assert error.code in ("SW0742", "SW0745"), error
            refused += 1
        assert is_same(expected, all_of(module, optimizer, extra)), f"case {case}: {name}, bit {bit}"
        (tmp_path / name).write_bytes(data)
    assert refused > 250


def test_a_flipped_bit_of_a_number_is_named(tmp_path: Path) -> None:
    """On all ranks, also those that read nothing of it."""
    made = bundle("mlp", "data", 3)
    save_after(made, "mlp", tmp_path)
    table = read_metadata(tmp_path)
    at = {index.fqn: info for index, info in table.storage_data.items()}
    for place in ("model.layers.0.up.weight", "optimizer.state.layers.0.up.weight.exp_avg", "extra"):
        file = tmp_path / at[place].relative_path
        data = file.read_bytes()
        middle = at[place].offset + at[place].length // 2
        file.write_bytes(flipped(data, 8 * middle))
        text = refusal(made, "mlp", tmp_path)
        assert text.startswith(f"error[SW0745]: the file {file.name} of the checkpoint HERE is damaged"), text
        assert f"why: {place} is not as it was saved" in text
        file.write_bytes(data)


def test_a_rank_that_reads_a_part_of_a_piece_compares_all_of_it(tmp_path: Path) -> None:
    """One rank's piece is read by two, which need half of it each; the damage is in one half."""
    save_after(bundle("mlp", "data", 1), "mlp", tmp_path)
    made = bundle("mlp", "megatron", 2)
    resumed = resume(made, "mlp", tmp_path)
    assert_equal(resumed, uninterrupted("mlp"))
    place = "model.layers.0.up.weight"
    info = next(i for index, i in read_metadata(tmp_path).storage_data.items() if index.fqn == place)
    file = tmp_path / info.relative_path
    data = file.read_bytes()
    for share in (0.3, 0.7):
        file.write_bytes(flipped(data, 8 * int(info.offset + share * info.length)))
        assert f"{place} is not as it was saved" in refusal(made, "mlp", tmp_path)


def test_every_item_has_a_digest(tmp_path: Path) -> None:
    save_after(bundle("mlp", "data", 3), "mlp", tmp_path)
    table: Any = read_metadata(tmp_path)
    for index, info in table.storage_data.items():
        assert info.offset in table.shardwright_digests[info.relative_path], index


def test_a_checkpoint_without_digests_is_loaded_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = bundle("mlp", "data", 2)
    with monkeypatch.context() as earlier:
        earlier.setattr(folder, "note", lambda table, digests: None)
        earlier.setattr(folder, "seal", lambda path: None)
        save_after(made, "mlp", tmp_path)
    with pytest.warns(UserWarning, match="has no digests of its data") as warned:
        assert_equal(resume(made, "mlp", tmp_path), uninterrupted("mlp"))
    assert len(warned) == 1
    assert main(["ckpt", "info", str(tmp_path)]) == 0
    assert "without digests of its data" in capsys.readouterr().out
    assert main(["ckpt", "info", str(tmp_path), "--verify"]) == 1
    assert "error[SW0755]" in capsys.readouterr().err


def test_a_checkpoint_is_verified_without_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, args = models.mlp()
    optimizer = plain_adamw(module)
    steps(module, optimizer, batches(args)[:BEFORE])
    sw.save(module, optimizer, tmp_path, {"step": 1})
    assert main(["ckpt", "info", str(tmp_path), "--verify"]) == 0
    assert "all of it is as it was saved" in capsys.readouterr().out
    assert main(["ckpt", "info", str(tmp_path)]) == 0
    assert "as it was saved" not in capsys.readouterr().out
    # The random streams of a rank, which a load of fewer ranks does not read.
    info = next(i for x, i in read_metadata(tmp_path).storage_data.items() if "random" in x.fqn)
    file = tmp_path / info.relative_path
    file.write_bytes(flipped(file.read_bytes(), 8 * (info.offset + info.length // 2)))
    assert main(["ckpt", "info", str(tmp_path), "--verify", "--json"]) == 1
    assert "shardwright.random.0 is not as it was saved" in capsys.readouterr().err


def test_a_resharded_run_goes_on_from_verified_pieces(tmp_path: Path) -> None:
    save_after(bundle("mlp", "data", 3), "mlp", tmp_path)
    assert_equal(resume(bundle("mlp", "megatron", 2), "mlp", tmp_path), uninterrupted("mlp"))


def test_merging_reads_nothing_that_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sw.save(nn.Linear(64, 64), None, tmp_path / "c")
    info = next(i for x, i in read_metadata(tmp_path / "c").storage_data.items() if x.fqn == "model.weight")
    file = tmp_path / "c" / info.relative_path
    file.write_bytes(flipped(file.read_bytes(), 8 * (info.offset + info.length // 2)))
    assert main(["ckpt", "merge", str(tmp_path / "c"), "-o", str(tmp_path / "m.safetensors")]) == 1
    assert "model.weight is not as it was saved" in capsys.readouterr().err
