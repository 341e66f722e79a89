"""Hooks of parameters run as they do on one device, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from a_loop import BATCHES, Net, assert_equal_training, on_ranks, train

torch.set_num_threads(1)


class _Double:
    """After the gradient is there, doubles it: by another way than a hook's result."""

    def __call__(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(2)


def _clip(grad: Tensor) -> Tensor:
    return grad * (0.01 / grad.norm())


HOOKS: list[tuple[str, Any]] = [("register_hook", _clip), ("register_post_accumulate_grad_hook", _Double())]


@pytest.mark.parametrize(("register", "hook"), HOOKS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_of_whole_parameters_run(register: str, hook: Any, when: str) -> None:
    def add(model: Any) -> None:
        for parameter in (model.blocks[0].norm.weight, model.blocks[1].down.bias):
            if parameter.numel():
                getattr(parameter, register)(hook)

    def net() -> nn.Module:
        made = Net()
        if when == "before":
            add(made)
        return made

    def body(model: Any, _: nn.Module) -> Any:
        if when == "after":
            add(model)
        return train(model)

    plain = net()
    if when == "after":
        add(plain)
    expected = train(plain)
    assert expected[0] != train(Net())[0]
    assert_equal_training(on_ranks(body, "data", net), expected)


@pytest.mark.parametrize(("register", "hook"), HOOKS)
def test_hooks_see_each_micro_batch_of_a_step(register: str, hook: Any) -> None:
    def net() -> nn.Module:
        made = Net()
        getattr(made.blocks[0].norm.weight, register)(hook)
        return made

    plain = net()
    for batch in BATCHES[:2]:
        (plain(*batch)["loss"] / 2).backward()

    def body(model: Any, _: nn.Module) -> dict[str, Tensor | None]:
        model.train_step(BATCHES[:2])
        return {name: p.grad for name, p in model.named_parameters()}

    actual = on_ranks(body, "data", net)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(actual[name], parameter.grad)


def test_a_hook_on_what_the_plan_divides_is_refused_at_parallelize() -> None:
    def net() -> nn.Module:
        made = Net()
        made.blocks[0].up.weight.register_hook(_clip)
        return made

    with pytest.raises(sw.RuntimeFault, match=r"SW0807.*'blocks.0.up.weight'"):
        on_ranks(lambda *_: None, "megatron", net)


def test_a_hook_that_reads_the_module_is_refused() -> None:
    def net() -> nn.Module:
        made = Net()
        weight = made.head.weight
        weight.register_hook(lambda grad: grad + weight.detach())
        return made

    with pytest.raises(sw.RuntimeFault, match=r"SW0807.*reads 'head.weight'"):
        on_ranks(lambda *_: None, "data", net)


def test_a_late_hook_that_returns_something_is_pytorchs_own_error() -> None:
    def body(model: Any, _: nn.Module) -> None:
        model.head.bias.register_post_accumulate_grad_hook(lambda p: p.grad * 3)
        with pytest.raises(RuntimeError, match="hooks should return None"):
            model(*BATCHES[0])["loss"].backward()

    body(Net(), nn.Module())
    on_ranks(body, "data")
