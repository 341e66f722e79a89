"""Ranks that build different models train one model: that of rank 0."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

import shardwright as sw
from shardwright.runtime import LocalComm, run_local
from shardwright.runtime.programs.regions import cut, whole

torch.set_num_threads(1)

WIDTH = 8
BATCH = torch.ones(4, WIDTH, dtype=torch.float64), torch.zeros(4, WIDTH, dtype=torch.float64)


class Net(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.register_buffer("scale", torch.rand(WIDTH))
        self.register_buffer("shift", torch.rand(WIDTH), persistent=False)
        self.constant = torch.rand(WIDTH).double()
        self.double()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        y = self.down(torch.relu(self.up(x * self.constant))) * self.scale + self.shift
        return (y - target).pow(2).mean()


def seeded(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net()


def from_file(seed: int, folder: Path) -> dict[str, Any]:
    save_file(seeded(seed).state_dict(), folder / f"{seed}.safetensors")
    return {"weights": folder / f"{seed}.safetensors"}


# By what ranks have of their own: the module and the options of a rank, from its seed.
SOURCES: dict[str, Callable[[int, Path], tuple[nn.Module, dict[str, Any]]]] = {
    "modules": lambda seed, _: (seeded(seed), {}),
    "deferred": lambda seed, _: (sw.deferred(Net, seed=seed), {}),
    "tensors": lambda seed, _: (seeded(9), {"weights": seeded(seed).state_dict()}),
    "files": lambda seed, folder: (seeded(9), from_file(seed, folder)),
}


def started(
    made: list[tuple[nn.Module, dict[str, Any]]], plan: str, says: bool = False
) -> list[tuple[dict[str, Tensor], float, bool]]:
    """Of each rank: the whole state, a loss, and whether every part is the one of that state."""

    def body(rank: int, comm: LocalComm) -> tuple[dict[str, Tensor], float, bool]:
        module, options = made[rank]
        model = sw.parallelize(module, BATCH, plan=plan, comm=comm, cache=False, progress=says, **options)
        full = model.full_state_dict()
        parts = [
            torch.equal(cut(full[shard.tensor.names[0]], shard.tensor.factors, shard.region), shard.data)
            for shard in model.shards.held
            if shard.tensor.saved and shard.region != whole(shard.tensor.factors)
        ]
        replicas = [
            torch.equal(full[shard.tensor.names[0]], shard.data)
            for shard in model.shards.held
            if shard.tensor.saved and shard.region == whole(shard.tensor.factors)
        ]
        return full, model(*BATCH).item(), all(parts + replicas)

    return run_local(len(made), body)


@pytest.mark.parametrize("plan", ["data", "megatron", "data:2 x megatron:2"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_rank_starts_with_the_values_of_rank_0(source: str, plan: str, tmp_path: Path) -> None:
    world = 4 if "x" in plan else 2
    ranks = started([SOURCES[source](rank, tmp_path) for rank in range(world)], plan)
    alone = started([SOURCES[source](0, tmp_path)], "replicate")[0]
    for full, loss, parts_are_of_it in ranks:
        assert parts_are_of_it
        assert loss == pytest.approx(alone[1], rel=1e-12)
        assert all(torch.equal(full[name], value) for name, value in alone[0].items())


def test_an_initialisation_that_draws_outside_of_torch_is_that_of_rank_0() -> None:
    class Odd(Net):
        def __init__(self) -> None:
            super().__init__()
            nn.init.constant_(self.up.weight, random.random())

    states = [state for state, _, _ in started([(sw.deferred(Odd), {}) for _ in range(2)], "data")]
    assert torch.equal(states[0]["up.weight"], states[1]["up.weight"])


def test_only_what_differs_travels_and_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    same = [(seeded(0), {}) for _ in range(3)]
    started(same, "replicate", says=True)
    assert "started with other values" not in capsys.readouterr().err
    with torch.no_grad():
        for rank in (1, 2):
            same[rank][0].scale.add_(1)
    ranks = started(same, "replicate", says=True)
    said = capsys.readouterr().err
    assert "ranks 1 and 2 started with other values than rank 0 in 1 of 6 tensors (scale)" in said
    assert all(torch.equal(state["scale"], same[0][0].scale) for state, _, _ in ranks)


def test_values_that_are_alike_make_no_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a value travels")

    monkeypatch.setattr("shardwright.weights.common._FromRank0.parts", never)
    started([(seeded(0), {}) for _ in range(2)], "data")


def test_an_error_of_rank_0_reaches_ranks_that_wait_for_its_values(tmp_path: Path) -> None:
    made = [SOURCES["files"](rank, tmp_path) for rank in range(2)]

    def damaged(self: Any, *_: Any) -> Tensor:
        raise sw.RuntimeFault("SW0750", "the file is damaged")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(sw.RuntimeFault, match="SW0750"):
        patch.setattr("shardwright.weights.files.Files.part", damaged)
        started(made, "data")


@pytest.mark.processes
def test_processes_that_nobody_seeds_train_one_model() -> None:
    first, second = sw.launch(_unseeded, devices=2, args=("megatron",))
    assert first == second


def _unseeded(rank: int, plan: str) -> list[Any]:
    torch.seed()
    model = sw.parallelize(Net(), BATCH, plan=plan, randomness="single-device", cache=False, progress=False)
    optimizer = sw.optimizer(model, torch.optim.SGD, lr=0.1)
    losses = []
    for _ in range(2):
        losses.append(float(model.train_step(BATCH)))  # type: ignore[arg-type]
        optimizer.step()
        optimizer.zero_grad()
    norms = [float(value.norm()) for value in model.full_state_dict().values()]
    of_ranks: list[Any] = [None] * 2
    dist.all_gather_object(of_ranks, [*losses, *norms, float(torch.rand(()))])
    return of_ranks
