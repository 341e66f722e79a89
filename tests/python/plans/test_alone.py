"""One rank of a plan by itself does what it does among the others, but for its numbers."""

from __future__ import annotations

import copy

import pytest
import torch

import shardwright as sw
from models import Model, gpt, mlp
from shardwright.runtime import Alone, Comm, optimizer, run_local

Did = list[tuple[str, int, int]]

PLANS = [
    ("data", 2),
    ("megatron", 2),
    ("sequence", 2),
    ("data:2 x megatron:2", 4),
    ("zero1", 2),
    ("zero3 x recompute", 2),
    ("stages:2 x 1f1b", 2),
    ("stages:2 x zb-h1", 2),
    ("stages:2 x data:2 x 1f1b", 4),
    ("data x offload", 2),
]


def steps(comm: Comm, model: Model, plan: str, inputs: str = "global") -> Did:
    """What a rank communicates in the second of two steps."""
    module, parts = copy.deepcopy(model[0]), model[1]
    if inputs == "local":
        size = len(parts[0]) // comm.world
        parts = tuple(x[comm.rank * size : (comm.rank + 1) * size] for x in parts)
    kwargs = {"micro_batches": 2} if "stages" in plan else {}
    trained = sw.parallelize(module, parts, plan=plan, inputs=inputs, comm=comm, progress=False, **kwargs)
    updating = optimizer(trained, torch.optim.AdamW, lr=1e-3)
    for _ in range(2):
        updating.zero_grad()
        loss = trained.train_step(parts)
        updating.step()
        assert loss is None or loss.shape == ()
    return list(trained.issued)


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "world"), PLANS, ids=[plan for plan, _ in PLANS])
def test_a_rank_by_itself_communicates_what_it_does_among_others(plan: str, world: int) -> None:
    model = gpt(dropout=0.1)
    among = run_local(world, lambda rank, comm: steps(comm, model, plan))
    assert [steps(Alone(rank, world), model, plan) for rank in range(world)] == among


@pytest.mark.slow
def test_a_rank_by_itself_may_be_given_its_part_of_the_batch() -> None:
    model = gpt()
    among = run_local(2, lambda rank, comm: steps(comm, model, "data", "local"))
    assert [steps(Alone(rank, 2), model, "data", "local") for rank in range(2)] == among


def test_a_rank_by_itself_is_one_of_its_world() -> None:
    with pytest.raises(ValueError, match="no rank 2 among 2"):
        Alone(2, 2)


def test_what_rank_0_makes_for_all_is_made_by_each() -> None:
    module, args = mlp()
    model = sw.parallelize(module, args, plan="data", comm=Alone(3, 4), cache=False, progress=False)
    assert model.comm.rank == 3
    assert model.program.world == 4
    model.full_state_dict()
