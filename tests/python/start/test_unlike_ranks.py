"""Ranks that are told other things than the others are refused, all of them, with which rank says what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import shardwright as sw
from shardwright.runtime import LocalComm, run_local
from shardwright.runtime.agreement import alike

torch.set_num_threads(1)

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


def seeded(module: nn.Module) -> None:
    """Values of its own generator: the ranks are threads here, and draw from the global one in any order."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)
        seeded(self)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.down(self.up(x).tanh())
        return {"loss": y.square().mean(), "y": y}


def parallel(comm: LocalComm, **options: Any) -> Any:
    given = {"plan": "zero3", "cache": False, "progress": False, **options}
    return sw.parallelize(Net(), X, comm=comm, **given)


def refused(body: Callable[[int, LocalComm], Any], world: int = 2) -> str:
    """The one error of all ranks."""
    messages: list[str] = []

    def rank(rank: int, comm: LocalComm) -> None:
        with pytest.raises(sw.RuntimeFault) as error:
            body(rank, comm)
        assert error.value.everywhere or error.value.code == "SW0835"
        messages.append(str(error.value))

    run_local(world, rank)
    assert len(messages) == world and len(set(messages)) == 1, messages
    return messages[0]


ARGUMENTS = [
    ("plan", "data", "zero3"),
    ("outputs", "all", "loss"),
    ("micro_batches", 2, 1),
    ("seed", 1, 0),
    ("randomness", "single-device", "keyed"),
    ("precision", "bf16", None),
    ("optimizer", "sgd", "adamw"),
    ("memory", "1GiB", None),
]


@pytest.mark.parametrize(("name", "other", "usual"), ARGUMENTS, ids=[name for name, *_ in ARGUMENTS])
def test_another_argument_of_parallelize_on_one_rank_is_refused(name: str, other: Any, usual: Any) -> None:
    text = refused(lambda rank, comm: parallel(comm, **{name: other if rank == 1 else usual}))
    assert text.startswith("error[SW0835]: the ranks call `sw.parallelize` with other arguments"), text
    assert f"why: {name}: rank 0: " in text and "; rank 1: " in text


def test_another_example_on_one_rank_is_refused() -> None:
    def body(rank: int, comm: LocalComm) -> None:
        sw.parallelize(Net(), X[: 4 - rank], plan="data", cache=False, progress=False, comm=comm)

    text = refused(body)
    assert "rank 0: (4, 4) of float32; rank 1: (3, 4) of float32" in text


def test_an_argument_that_one_rank_refuses_is_refused_by_all() -> None:
    text = refused(lambda rank, comm: parallel(comm, randomness="odd" if rank else "keyed"))
    assert text.startswith("error[SW0721]: randomness='odd' is unknown")


def test_a_model_in_another_mode_on_one_rank_is_refused() -> None:
    def body(rank: int, comm: LocalComm) -> None:
        sw.parallelize(Net().train(rank == 0), X, plan="data", cache=False, progress=False, comm=comm)

    assert "rank 1 has `the model`: Net() in evaluation mode" in refused(body)


def test_another_version_on_one_rank_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thing that ranks compare: whatever comes after may be another in each version."""
    import threading

    def version() -> str:
        return "9.9" if threading.current_thread().name == "rank 1" else "0.1"

    monkeypatch.setattr(alike, "own_version", version)
    text = refused(lambda rank, comm: parallel(comm))
    assert text.startswith("error[SW0835]: the ranks call `sw.parallelize` with other versions")
    assert "the version of shardwright: rank 0: '0.1'; rank 1: '9.9'" in text
    assert "help: install the same version for all ranks" in text


class Mine(torch.optim.SGD):
    pass


OPTIMIZERS: list[tuple[str, Any, Any]] = [
    ("the class", lambda model: sw.optimizer(model, torch.optim.SGD, lr=0.1), "torch.optim.sgd.SGD"),
    ("lr", lambda model: sw.optimizer(model, torch.optim.AdamW, lr=0.2), "0.2"),
    ("betas", lambda model: sw.optimizer(model, torch.optim.AdamW, lr=0.1, betas=(0.5, 0.9)), "[0.5, 0.9]"),
    ("elementwise", lambda model: sw.optimizer(model, torch.optim.AdamW, lr=0.1, elementwise=True), "True"),
    ("params", lambda model: sw.optimizer(model, torch.optim.AdamW, ["up.*"], lr=0.1), "['up.*']"),
    (
        "the number of groups",
        lambda model: sw.optimizer(model, torch.optim.AdamW, [{"params": ["*"]}], lr=0.1),
        "1",
    ),
]


@pytest.mark.parametrize(("name", "make", "said"), OPTIMIZERS, ids=[name for name, *_ in OPTIMIZERS])
def test_another_optimizer_on_one_rank_is_refused(name: str, make: Any, said: str) -> None:
    def body(rank: int, comm: LocalComm) -> None:
        model = parallel(comm)
        make(model) if rank == 1 else sw.optimizer(model, torch.optim.AdamW, lr=0.1)

    text = refused(body)
    assert text.startswith("error[SW0835]: the ranks call `sw.optimizer` with other arguments"), text
    assert f"{name}: rank 0: " in text and f"rank 1: {said}" in text, text


def test_another_option_of_a_group_on_one_rank_is_refused() -> None:
    def body(rank: int, comm: LocalComm) -> None:
        groups = [{"params": ["up.*"], "weight_decay": 0.1 + rank}, {"params": ["down.*"]}]
        sw.optimizer(parallel(comm), torch.optim.AdamW, groups, lr=0.1)

    assert "weight_decay of group 0: rank 0: 0.1; rank 1: 1.1" in refused(body)


def test_another_group_that_is_added_on_one_rank_is_refused() -> None:
    def body(rank: int, comm: LocalComm) -> None:
        made = sw.optimizer(parallel(comm), torch.optim.AdamW, ["up.*"], lr=0.1)
        made.add_param_group({"params": ["down.*"], "lr": 0.5 if rank else 0.1})

    text = refused(body)
    assert "the ranks call `add_param_group` with other arguments" in text
    assert "lr of group 0: rank 0: 0.1; rank 1: 0.5" in text


def test_optimizers_of_equal_arguments_are_made() -> None:
    """Also where each rank gives other tensors, or a generator of them, or its own function."""

    def rank(_: int, comm: LocalComm) -> int:
        model = parallel(comm, plan=lambda graph, draft: sw.Plan.named(graph, "data", 2))
        named = model.named_parameters()
        groups = [{"params": (p for name, p in named if "up" in name), "lr": torch.tensor(0.5)}]
        made = sw.optimizer(model, Mine, groups, lr=0.1)
        sw.optimizer(model, torch.optim.AdamW, model.parameters(), lr=0.1)
        return len(made.param_groups)

    assert run_local(2, rank) == [1, 1]


@pytest.mark.parametrize("name", ["max_norm", "norm_type"])
def test_another_norm_to_clip_by_on_one_rank_is_refused(name: str) -> None:
    def body(rank: int, comm: LocalComm) -> None:
        model = parallel(comm)
        model.train_step([X])
        other = {"max_norm": 1.0, "norm_type": 2.0, name: 1.0 + 2 * (rank == 1)}
        usual = {"max_norm": 1.0, "norm_type": 2.0}
        sw.clip_grad_norm_(model, **(other if rank == 1 else usual))

    text = refused(body)
    assert text.startswith("error[SW0835]: the ranks call `sw.clip_grad_norm_` with other arguments"), text
    assert f"{name}: rank 0: " in text and "rank 1: 3.0" in text


def test_a_scheduler_that_one_rank_steps_is_told_in_the_next_call() -> None:
    def body(rank: int, comm: LocalComm) -> None:
        model = parallel(comm)
        made = sw.optimizer(model, torch.optim.SGD, lr=0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)
        model.train_step([X])
        made.step()
        if rank == 1:
            scheduler.step()
        model.train_step([X])

    text = refused(body)
    assert text.startswith("error[SW0781]: the ranks have changed the model differently"), text
    for rank, lr in enumerate(("0.5", "0.25")):
        assert f"rank {rank}: SGD steps group 0 with lr={lr}, " in text


def test_another_optimizer_of_pytorchs_own_constructor_is_told_in_the_next_call() -> None:
    def body(rank: int, comm: LocalComm) -> None:
        model = parallel(comm, plan="data")
        kind = torch.optim.AdamW if rank else torch.optim.Adam
        made = kind(model.parameters(), lr=0.1)
        model.train_step([X])
        made.step()
        model.train_step([X])

    text = refused(body)
    assert "rank 0: Adam is made with" in text and "rank 1: AdamW is made with" in text


@pytest.mark.parametrize("plan", ["data", "stages:2 x 1f1b"])
def test_a_mode_of_one_rank_alone_is_no_other_batch(plan: str) -> None:
    def body(rank: int, comm: LocalComm) -> None:
        model = parallel(comm, plan=plan)
        model.train_step([X, X])
        if rank == 1:
            model.eval()
        model.train_step([X, X])

    assert refused(body).splitlines()[:2] == [
        "error[SW0781]: the ranks call the model in different modes",
        "  why: rank 0: training mode | rank 1: evaluation mode",
    ]


def test_a_step_without_gradients_on_one_rank_is_told() -> None:
    def body(rank: int, comm: LocalComm) -> None:
        model = parallel(comm)
        with torch.set_grad_enabled(rank == 0):
            model.train_step([X])

    assert "rank 0: with gradients | rank 1: without gradients" in refused(body)
