"""A plan for a unit of devices, on several units."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equality
import models
import shardwright as sw
from shardwright import RuntimeFault
from shardwright.start.starter import Starter, units_of


@pytest.mark.parametrize(
    ("devices", "world", "expected"), [(None, 8, (8, 1)), (4, 8, (4, 2)), (1, 3, (1, 3)), (8, 8, (8, 1))]
)
def test_a_world_is_so_many_units(devices: int | None, world: int, expected: tuple[int, int]) -> None:
    assert units_of(devices, world) == expected


@pytest.mark.parametrize(("devices", "world"), [(3, 8), (16, 8), (0, 8), (-4, 8)])
def test_a_world_that_fits_no_unit_is_refused(devices: int, world: int) -> None:
    with pytest.raises(RuntimeFault) as refused:
        units_of(devices, world)
    assert refused.value.code == "SW0722"
    assert "give one of 1, 2, 4, 8" in str(refused.value)


@pytest.mark.slow
def test_a_unit_runs_on_several_units() -> None:
    module, args = models.gpt()
    bundle = Starter("megatron", 2, 2, {"outputs": "loss"}).first(module, args, None)
    assert (bundle.devices, bundle.plan) == (4, "2 units of megatron")
    equality.assert_equal(equality.run(bundle, module, args), equality.reference(module, args))


def test_a_batch_that_is_too_small_for_the_units_is_refused() -> None:
    module, args = models.gpt(batch=3)
    with pytest.raises(sw.PlanError, match="the batch cannot be divided among 4 units"):
        Starter("megatron", 2, 4, {"outputs": "loss"}).first(module, args, None)


@pytest.mark.slow
def test_a_further_program_is_for_all_units() -> None:
    """A short batch of an evaluation goes over the same shards."""
    module, args = models.gpt()
    starter = Starter("megatron", 2, 2, {"outputs": "all"})
    starter.first(module, args, None)
    further = starter.further(module, *_short(args))
    assert further.devices == 4
    short, _ = _short(args)
    equality.assert_equal(equality.run(further, module, short), equality.reference(module, short))


def _short(args: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(x[:3].contiguous() for x in args), {}


def losses_of(rank: int) -> list[float]:
    module, args = models.gpt()
    model = sw.parallelize(module, args, plan="megatron", devices=2)
    adamw = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
    losses = []
    for _ in range(2):
        loss = model.train_step(args)
        assert loss is not None
        losses.append(loss.item())
        adamw.step()
        adamw.zero_grad()
    return losses


@pytest.mark.processes
def test_processes_are_units() -> None:
    module, args = models.gpt()
    adamw = torch.optim.AdamW(module.parameters(), lr=1e-2)
    expected = []
    for _ in range(2):
        loss = module(*args)[1]
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        expected.append(loss.item())
    assert sw.launch(losses_of, devices=4, timeout=300) == pytest.approx(expected, rel=1e-9)
