"""`load_state_dict` of an optimizer over parts takes the single device's state, or refuses it at once."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import a_loop
import shardwright as sw
from a_loop import Net
from runtime_programs import mlp
from shardwright import RuntimeFault
from shardwright.runtime import ParallelModule
from test_optimizer import BATCHES, PROGRAMS, assert_same_state, by_dims, on_ranks, plain_step

torch.set_num_threads(1)

Make = Callable[[nn.Module], Optimizer]


def begun(make: Make) -> tuple[nn.Module, dict[str, Any], dict[str, Tensor]]:
    """A resumed run of the single device: its model, and the optimizer's state and the weights before."""
    plain = mlp()
    theirs = make(plain)
    for at in (0, 1):
        theirs.zero_grad()
        plain_step(plain, at)
        theirs.step()
    state, weights = copy.deepcopy(theirs.state_dict()), copy.deepcopy(plain.state_dict())
    theirs = make(plain)
    theirs.load_state_dict(copy.deepcopy(state))
    theirs.zero_grad()
    plain_step(plain, 2)
    theirs.step()
    return plain, state, weights


def resumed(model: ParallelModule, ours: Optimizer, state: Any, weights: Any) -> dict[str, Tensor]:
    model.load_state_dict(weights)
    ours.load_state_dict(copy.deepcopy(state))
    model.train_step(BATCHES[2])
    ours.step()
    return model.full_state_dict()


def grouped(groups: Callable[[nn.Module], Any], cls: Any, **options: Any) -> Make:
    return lambda model: (
        sw.optimizer(model, cls, groups(model), **options)
        if isinstance(model, ParallelModule)
        else cls(groups(model), **options)
    )


def parameters(model: nn.Module) -> Any:
    return list(model.parameters())


def named(model: nn.Module) -> Any:
    return list(model.named_parameters())


def reversed_names(model: nn.Module) -> Any:
    return list(model.named_parameters())[::-1]


SAME: dict[str, Make] = {
    "adamw": grouped(parameters, torch.optim.AdamW, lr=0.1, amsgrad=True),
    "momentum": grouped(parameters, torch.optim.SGD, lr=0.1, momentum=0.9),
    "nadam": grouped(parameters, torch.optim.NAdam, lr=0.1),
    "groups": grouped(by_dims, torch.optim.AdamW, lr=0.1),
    "names": grouped(named, torch.optim.AdamW, lr=0.1),
}


@pytest.mark.parametrize("case", SAME)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_of_the_single_device_goes_on_over_parts(name: str, case: str) -> None:
    plain, state, weights = begun(SAME[case])
    for actual in on_ranks(name, lambda model: resumed(model, SAME[case](model), state, weights)):
        assert_same_state(actual, plain)


def test_names_say_which_state_is_whose_in_any_order() -> None:
    plain, state, weights = begun(lambda model: torch.optim.AdamW(reversed_names(model), lr=0.1))
    assert state["param_groups"][0]["param_names"][0] == "down.bias"
    for actual in on_ranks("megatron", lambda m: resumed(m, SAME["adamw"](m), state, weights)):
        assert_same_state(actual, plain)


def test_an_optimizer_of_pytorchs_own_constructor_takes_it_as_well() -> None:
    plain, state, weights = begun(lambda model: torch.optim.AdamW(model.parameters(), lr=0.1))

    def body(model: ParallelModule) -> dict[str, Tensor]:
        return resumed(model, torch.optim.AdamW(model.parameters(), lr=0.1), state, weights)

    for name in PROGRAMS:
        for actual in on_ranks(name, body):
            assert_same_state(actual, plain)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_optimizers_own_state_is_taken_as_it_is(name: str) -> None:
    def body(model: ParallelModule) -> None:
        for ours in (SAME["groups"](model), torch.optim.AdamW(model.parameters(), lr=0.1)):
            model.train_step(BATCHES[0])
            ours.step()
            kept = copy.deepcopy(ours.state_dict())
            ours.step()
            ours.load_state_dict(kept)
            assert str(ours.state_dict()["state"]) == str(kept["state"])

    on_ranks(name, body)


def test_parts_of_an_optimizer_of_pytorchs_own_constructor_are_not_saved_as_the_state() -> None:
    def body(model: ParallelModule) -> None:
        ours = torch.optim.AdamW(model.parameters())
        model.train_step(BATCHES[0])
        ours.step()
        with pytest.raises(RuntimeFault, match="SW0800"):
            torch.save(ours.state_dict(), io.BytesIO())

    on_ranks("megatron", body)


def two_groups(model: nn.Module) -> Any:
    return [{"params": list(model.parameters())[:2]}, {"params": list(model.parameters())[2:]}]


def _misshapen(state: Any) -> Any:
    state["state"][0]["exp_avg"] = torch.zeros(3, 3)
    return state


def _factored(state: Any) -> Any:
    state["state"][0]["row_var"] = torch.zeros(3)
    return state


def _nested(state: Any) -> Any:
    state["state"][0]["basis"] = [torch.zeros(3, 3)]
    return state


def _fewer(state: Any) -> Any:
    state["param_groups"][0]["params"].pop()
    return state


def _renamed(state: Any) -> Any:
    state["param_groups"][0]["param_names"] = ["a", "b", "c", "d"]
    return state


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another shape": (_misshapen, "`exp_avg` of up.weight has the shape (3, 3)"),
    "factors": (_factored, "`row_var` of up.weight has the shape (3,)"),
    "in a list": (_nested, "`basis` of up.weight has the shape (3, 3)"),
    "a parameter less": (_fewer, "group 0 has 3 parameters, and that of the optimizer 4"),
    "other names": (_renamed, "group 0 has 4 parameters, a, b, c and 1 more among them"),
    "no groups": (lambda state: {"state": {}}, "no `state` and `param_groups`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_when_it_is_loaded_and_changes_nothing(case: str) -> None:
    change, text = REFUSED[case]
    _, state, _ = begun(SAME["adamw"])
    state = change(state)

    def body(model: ParallelModule) -> str:
        ours = SAME["adamw"](model)
        with pytest.raises(RuntimeFault, match="SW0754") as error:
            ours.load_state_dict(state)
        assert not ours.state
        return str(error.value)

    assert text in on_ranks("megatron", body)[0]


def test_groups_in_another_order_or_number_are_refused() -> None:
    _, state, _ = begun(SAME["adamw"])
    _, two, _ = begun(grouped(two_groups, torch.optim.AdamW))

    def body(model: ParallelModule) -> None:
        backwards = sw.optimizer(model, torch.optim.AdamW, list(model.parameters())[::-1])
        with pytest.raises(RuntimeFault, match="in another order than the model's"):
            backwards.load_state_dict(state)
        with pytest.raises(RuntimeFault, match="it has 2 parameter groups, and the optimizer 1"):
            SAME["adamw"](model).load_state_dict(two)

    on_ranks("megatron", body)


class Tied(Net):
    """A weight has two names, and a part is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.blocks[1].extra = nn.Parameter(torch.eye(8, dtype=torch.float64))
        self.blocks[0].down.requires_grad_(False)

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        return super().forward(x @ self.blocks[1].extra, target)


def matrices(model: nn.Module) -> Any:
    return [p for p in model.parameters() if p.dim() == 2]


def trained(model: nn.Module) -> Any:
    return [p for p in model.parameters() if p.requires_grad]


CAPTURED: dict[str, tuple[str, Make]] = {
    "tied and frozen": ("megatron", grouped(parameters, torch.optim.AdamW, lr=0.01)),
    "tied and frozen, zero": ("zero3", grouped(trained, torch.optim.AdamW, lr=0.01)),
    "whole updates": ("zero3 x whole-updates", grouped(parameters, torch.optim.Adafactor, lr=0.01)),
    "whole updates of muon": (
        "zero3 x whole-updates",
        lambda model: grouped(matrices, torch.optim.Muon, lr=0.01)(model),
    ),
}


@pytest.mark.parametrize("case", CAPTURED)
def test_tied_frozen_and_whole_parameters_have_their_own_state(case: str) -> None:
    plan, make = CAPTURED[case]

    def steps(model: nn.Module, optimizer: Optimizer, batches: Any) -> None:
        for batch in batches:
            optimizer.zero_grad()
            model(*batch)["loss"].backward()
            optimizer.step()

    plain = Tied()
    theirs = make(plain)
    steps(plain, theirs, a_loop.BATCHES[:2])
    state, weights = copy.deepcopy(theirs.state_dict()), copy.deepcopy(plain.state_dict())
    steps(plain, theirs, a_loop.BATCHES[2:])

    def body(model: Any, _: nn.Module) -> Any:
        model.load_state_dict(weights)
        ours = make(model)
        ours.load_state_dict(copy.deepcopy(state))
        steps(model, ours, a_loop.BATCHES[2:])
        return model.full_state_dict()

    assert_same_state(a_loop.on_ranks(body, plan, Tied), plain)
