"""What a training loop does with gradients and optimizers works on parts of them, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from a_loop import BATCHES, PLANS, Net, assert_equal_training, on_ranks, refused, train
from shardwright.runtime import ParallelModule
from shardwright.runtime.programs.regions import cut

torch.set_num_threads(1)


# ---- gradients -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_autograd_grad_gives_the_gradients_of_this_ranks_parts(plan: str) -> None:
    plain = Net()
    grads = torch.autograd.grad(plain(*BATCHES[0])["loss"], [*plain.parameters()])
    expected = dict(zip(dict(plain.named_parameters()), grads, strict=True))

    def body(model: Any, _: nn.Module) -> None:
        gradients = torch.autograd.grad(model(*BATCHES[0])["loss"], [*model.parameters()])
        assert all(p.grad is None for p in model.parameters())
        shards = {id(shard.data): shard for shard in model.shards.held}
        for parameter, grad in zip(model.parameters(), gradients, strict=True):
            shard = shards[id(parameter)]
            part = cut(expected[shard.tensor.names[0]], shard.tensor.factors, shard.region)
            torch.testing.assert_close(grad, part)

    on_ranks(body, plan)


@pytest.mark.parametrize("plan", PLANS)
def test_a_backward_from_another_thread_gives_the_same_gradients(plan: str) -> None:
    """On GPUs autograd runs in a thread of its own."""
    plain = Net()
    grads = torch.autograd.grad(plain(*BATCHES[0])["loss"], [*plain.parameters()])
    expected = dict(zip(dict(plain.named_parameters()), grads, strict=True))

    def body(model: Any, _: nn.Module) -> None:
        loss = model(*BATCHES[0])["loss"]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(loss.backward).result()
        shards = {id(shard.data): shard for shard in model.shards.held}
        for parameter in model.parameters():
            shard = shards[id(parameter)]
            part = cut(expected[shard.tensor.names[0]], shard.tensor.factors, shard.region)
            torch.testing.assert_close(parameter.grad, part)

    on_ranks(body, plan)


def test_gradients_of_gradients_are_refused() -> None:
    refused("SW0810", lambda m, _: m(*BATCHES[0])["loss"].backward(create_graph=True))


def test_parameters_that_change_between_forward_and_backward_are_pytorchs_own_error() -> None:
    def body(model: Any, _: nn.Module) -> None:
        loss = model(*BATCHES[0])["loss"]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        loss.backward()

    for plan in PLANS:
        with pytest.raises((RuntimeError, sw.RuntimeFault), match="modified by an inplace operation"):
            on_ranks(body, plan)


NORMS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda grads: sum(g.norm() ** 2 for g in grads),
    "norm of data": lambda grads: sum(g.detach().data.norm(2).item() ** 2 for g in grads),
    "squares": lambda grads: sum((g**2).sum() for g in grads),
    "stacked": lambda grads: torch.stack([torch.linalg.vector_norm(g) for g in grads]),
    "foreach": lambda grads: torch._foreach_norm(grads),
    "one vector": lambda grads: torch.cat([g.flatten() for g in grads]).norm(),
    "largest": lambda grads: max(g.abs().max() for g in grads),
    "of float": lambda grads: sum(g.float().pow(2).sum() for g in grads),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("step", ["train_step", "backward"])
def test_norms_of_parts_of_gradients_are_refused(norm: str, step: str) -> None:
    def grads(model: Any) -> list[Tensor]:
        if step == "train_step":
            model.train_step(BATCHES[0])
        else:
            model(*BATCHES[0])["loss"].backward()
        return [p.grad for p in model.parameters()]

    assert "sw.clip_grad_norm_" in refused("SW0762", lambda m, _: NORMS[norm](grads(m)))
    on_ranks(lambda m, _: NORMS[norm](grads(m)), "data")


def test_what_treats_each_element_of_a_gradient_by_itself_works_on_parts() -> None:
    def scale(model: Any) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.grad.clamp(-1e-3, 1e-3) * 2
            assert parameter.grad.isfinite().all()
            parameter.grad.mul_(0.5)

    def loop(model: Any) -> Any:
        cls = torch.optim.SGD
        options: dict[str, Any] = {"lr": 1.0, "momentum": 0.9}
        parallel = isinstance(model, ParallelModule)
        optimizer = sw.optimizer(model, cls, **options) if parallel else cls(model.parameters(), **options)
        for batch in BATCHES:
            model(*batch)["loss"].backward()
            scale(model)
            optimizer.step()
            optimizer.zero_grad()
        assert all(type(x) is Tensor for s in optimizer.state.values() for x in s.values())
        return [], model.full_state_dict() if parallel else model.state_dict()

    assert_equal_training(on_ranks(lambda model, _: loop(model)), loop(Net()))


# ---- optimizers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_optimizer_of_the_original_module_is_refused_at_its_step(when: str) -> None:
    modules: dict[int, torch.optim.Optimizer] = {}

    def net() -> nn.Module:
        made = Net()
        if when == "before":
            modules[id(made)] = torch.optim.AdamW(made.parameters())
        return made

    def body(model: Any, module: nn.Module) -> None:
        optimizer = modules.get(id(module)) or torch.optim.AdamW(module.parameters())
        model(*BATCHES[0])["loss"].backward()
        optimizer.step()

    assert "sw.optimizer(model, torch.optim.AdamW, ...)" in refused("SW0801", body, net=net)


def test_the_original_module_may_be_trained_by_itself() -> None:
    on_ranks(lambda model, module: (train(model), train(module)))


def _muon(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=0.01)


DIRECT: dict[str, Any] = {
    "Adafactor": torch.optim.Adafactor,
    "LBFGS": torch.optim.LBFGS,
    **({"Muon": _muon} if hasattr(torch.optim, "Muon") else {}),
}


@pytest.mark.parametrize("name", DIRECT)
def test_optimizers_that_look_at_whole_tensors_are_refused_at_their_step(name: str) -> None:
    def body(model: Any, _: nn.Module) -> None:
        optimizer = DIRECT[name](model.parameters())
        model.train_step(BATCHES[0])
        optimizer.step(lambda: 0.0)

    assert f"{name} does not work on parts of a tensor" in refused("SW0715", body)
    on_ranks(body, "data")


def test_elementwise_optimizers_may_be_made_by_their_constructor() -> None:
    expected = train(Net(), optimizer=None)
    actual = on_ranks(lambda m, _: train(m, optimizer=torch.optim.SGD(m.parameters(), lr=0.1)))
    assert_equal_training(actual, expected)
