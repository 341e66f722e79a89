"""Parameters that are frozen and unfrozen midway, also where some ranks hold nothing of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from shardwright.runtime import LocalComm, run_local

torch.set_num_threads(1)

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def seeded(module: nn.Module) -> None:
    """Values of its own generator: the ranks are threads here, and draw from the global one in any order."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)


class Deep(nn.Module):
    """Its first layer is frozen at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(4, 4).double() for _ in range(4)])
        seeded(self)
        self.l[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.l:
            x = layer(x).tanh()
        return x.square().mean()


def _by_module(model: Any, value: bool) -> None:
    model.l[0].requires_grad_(value)


def _by_name(model: Any, value: bool) -> None:
    model.l[0].weight.requires_grad_(value)
    model.l[0].bias.requires_grad = value


def _by_parameters(model: Any, value: bool) -> None:
    """A rank that holds none of them sees nothing here."""
    for parameter in model.l[0].parameters():
        parameter.requires_grad = value


def _of_all(model: Any, value: bool) -> None:
    model.requires_grad_(True)
    if not value:
        model.l[0].requires_grad_(False)


WAYS = [_by_module, _by_name, _by_parameters, _of_all]


def train(model: Any, optimizer: Any, change: Callable[[Any, bool], None]) -> list[float]:
    """Frozen, trained, frozen again; `train_step` of a plain module is what it stands for."""
    losses = []
    for step in range(6):
        if step in (2, 4):
            change(model, step == 2)
        optimizer.zero_grad()
        if isinstance(model, Deep):
            loss = sum(model(X * (1 + at)) / 2 for at in range(2))
            assert isinstance(loss, Tensor)
            loss.backward()
        else:
            loss = model.train_step([X, X * 2])
        optimizer.step()
        losses.append(float(loss))
    return losses


def parallel(comm: LocalComm, plan: str, **options: Any) -> Any:
    return sw.parallelize(Deep(), X, plan=plan, cache=False, progress=False, comm=comm, **options)


@pytest.mark.parametrize("plan", ["stages:2 x 1f1b", "stages:2 x zb-h1", "data", "stages:4 x gpipe"])
@pytest.mark.parametrize("change", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_a_parameter_is_frozen_and_unfrozen_as_on_one_device(plan: str, change: Any) -> None:
    if change is not _by_name and plan not in ("stages:2 x 1f1b", "data"):
        pytest.skip("one way is enough under each schedule")
    alone = Deep()
    losses = train(alone, torch.optim.AdamW(alone.parameters(), lr=0.05), change)
    expected = {name: p.detach() for name, p in alone.named_parameters()}

    def rank(_: int, comm: LocalComm) -> tuple[list[float], dict[str, Tensor]]:
        model = parallel(comm, plan)
        trained = train(model, sw.optimizer(model, torch.optim.AdamW, lr=0.05), change)
        return trained, model.full_state_dict()

    for actual, full in run_local(4 if "4" in plan else 2, rank):
        assert actual == pytest.approx(losses, rel=1e-9)
        for name, value in expected.items():
            assert torch.allclose(full[name], value, rtol=1e-9, atol=1e-12), name


def test_steps_without_a_pause_go_on_with_what_is_trained_now() -> None:
    """The help for what is under way can be followed."""

    def rank(_: int, comm: LocalComm) -> None:
        model = parallel(comm, "stages:2 x 2bw")
        optimizer = sw.optimizer(model, torch.optim.AdamW, lr=0.05)
        model.train_step([X, X])
        _by_name(model, True)
        with pytest.raises(sw.RuntimeFault, match="SW0814") as refused:
            model.train_step([X, X])
        assert "`model.finish()` and `optimizer.step()`" in str(refused.value)
        model.finish()
        optimizer.step()
        before = model.full_state_dict()["l.0.weight"]
        optimizer.zero_grad()
        model.train_step([X, X])
        model.finish()
        optimizer.step()
        assert not torch.equal(before, model.full_state_dict()["l.0.weight"])

    run_local(2, rank)


def test_what_stands_for_an_absent_parameter_has_no_values() -> None:
    def rank(rank: int, comm: LocalComm) -> None:
        model = parallel(comm, "stages:2 x 1f1b")
        there = model.l[3 if rank == 0 else 0].weight
        assert tuple(there.shape) == (4, 4) and there.dtype == torch.float64
        assert isinstance(there, nn.Parameter) and there.grad is None
        assert there is model.l[3 if rank == 0 else 0].weight
        assert there.requires_grad == (rank == 0)
        assert all(there is not p for p in model.parameters())
        for use in (
            lambda: there + 1,
            there.norm,
            lambda: torch.stack([there]),
            lambda: there.data,
            there.item,
        ):
            with pytest.raises(sw.RuntimeFault, match=r"SW0820.*'l\.[03]\.weight' is on other ranks"):
                use()
        assert "which other ranks hold" in repr(there)
        with pytest.raises(AttributeError):
            model.l[0].nothing  # noqa: B018
        # A group may name it: other ranks step it.
        sw.optimizer(model, torch.optim.SGD, [model.l[0].weight, model.l[3].weight], lr=0.1)

    run_local(2, rank)


def test_a_copy_of_a_model_trains_what_it_trains() -> None:
    def rank(_: int, comm: LocalComm) -> bool:
        model = parallel(comm, "stages:2 x 1f1b")
        _by_name(model, True)
        made = copy.deepcopy(model)
        made.train_step([X, X])
        held = [p for name, p in made.named_parameters() if name == "l.0.weight"]
        return all(p.grad is not None for p in held) and bool(held)

    assert sorted(run_local(2, rank)) == [False, True]


@pytest.mark.parametrize("plan", ["data", "stages:2 x 1f1b"])
@pytest.mark.parametrize("value", [True, False])
def test_a_parameter_that_one_rank_alone_freezes_is_told(plan: str, value: bool) -> None:
    """Also by a rank that does not hold it, and says something else than the one that does."""
    messages: list[str] = []

    def rank(rank: int, comm: LocalComm) -> None:
        model = parallel(comm, plan)
        model.train_step([X, X])
        if rank == 1:
            model.l[0 if value else 1].weight.requires_grad_(value)
        with pytest.raises(sw.RuntimeFault) as refused:
            model.train_step([X, X])
        messages.append(str(refused.value))

    run_local(2, rank)
    name, words = (
        ("l.0.weight", ("is frozen", "is trained")) if value else ("l.1.weight", ("is trained", "is frozen"))
    )
    assert len(messages) == 2 and len(set(messages)) == 1
    assert messages[0].startswith("error[SW0781]: the ranks have changed the model differently")
    assert f"rank 0: {name} {words[0]} | rank 1: {name} {words[1]}" in messages[0]
