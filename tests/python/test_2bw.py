"""Pipelines whose steps follow each other without a pause, with two versions of what is trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import models
import shardwright as sw
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.compiling import sources
from shardwright.errors import PlanError, RuntimeFault
from shardwright.runtime import ParallelModule, load_program, run_local

torch.set_num_threads(1)

NAMED = [
    ("stages:2 x 2bw", 2),
    ("stages:4 x 2bw", 4),
    ("stages:2 x data:2 x 2bw", 4),
    ("data:2 x stages:2 x 2bw", 4),
    ("stages:2 x megatron:2 x 2bw", 4),
    ("stages:2 x recompute x 2bw", 2),
    ("stages:3 x recompute:selective x 2bw", 3),
    ("stages:2 x offload:activations x 2bw", 2),
    ("stages:2 x offload:state x 2bw", 2),
]
Made = tuple[Any, dict[str, float]]
OPTIMIZERS: dict[str, Made] = {
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
}
# How many micro-batches each step has.
STEPS = (4, 5, 4, 7, 4)

State = dict[str, Tensor]


def given(args: Sequence[Any], steps: Sequence[int] = STEPS) -> list[list[equality.Batch]]:
    """The micro-batches of each step, all of them others."""
    found = equality.micro_batches(args, sum(steps))
    return [[found.pop(0) for _ in range(count)] for count in steps]


def loss_of(module: nn.Module, batch: Any) -> Tensor:
    return equality.scalars(module(*batch))[0]


def simulated(
    module: nn.Module, batches: Sequence[Sequence[Any]], made: Made
) -> tuple[list[Tensor], list[State], State]:
    """The definition, on one device: with v(-1) = v(0), batch t is computed forward and backward with v(t - 1),
    and the update with its gradients makes v(t + 1) of v(t). Losses, gradients of each batch, and the last version."""
    newest, computed = copy.deepcopy(module), copy.deepcopy(module)
    optimizer = made[0](newest.parameters(), **made[1])
    losses, gradients = [], []
    for step in batches:
        # `computed` has v(t - 1) while `newest` has v(t).
        computed.zero_grad()
        found = [loss_of(computed, batch) for batch in step]
        torch.stack([loss / len(step) for loss in found]).sum().backward()
        losses.append(torch.stack(found).mean().detach())
        gradients.append({n: p.grad.clone() for n, p in computed.named_parameters() if p.grad is not None})
        before = {name: p.detach().clone() for name, p in newest.named_parameters()}
        for name, parameter in newest.named_parameters():
            parameter.grad = gradients[-1].get(name)
        optimizer.step()
        with torch.no_grad():
            for name, parameter in computed.named_parameters():
                parameter.copy_(before[name])
    last = {name: p.detach() for name, p in newest.named_parameters()}
    return losses, gradients, last | {name: b.detach() for name, b in computed.named_buffers()}


def bundle(name: str, plan: str, devices: int) -> Bundle:
    captured = capture(*models.MODELS[name]())
    return bundle_of(captured, plan, devices)


def bundle_of(captured: Captured, plan: str, devices: int) -> Bundle:
    made = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    return Bundle(dict(made.files), made.digest, plan, devices, captured, made.proof, captured.graph_text)


def parallel(of: Bundle, module: nn.Module, comm: Any, **options: Any) -> ParallelModule:
    program = load_program(of.files, digest=of.digest, world=of.devices)
    return ParallelModule(program, comm, sources(module, of.captured), of.captured, **options)


def gradients_of(model: ParallelModule) -> dict[Any, Tensor]:
    """By tensor and region, what this rank has."""
    held = [s for s in model.shards.held if s.tensor.kind == "param" and s.data.grad is not None]
    return {(s.tensor.names[0], str(s.region)): s.data.grad.as_subclass(Tensor).clone() for s in held}


def trained(
    model: ParallelModule, batches: Sequence[Any], made: Made
) -> tuple[list[Tensor | None], list[dict[Any, Tensor]], State]:
    optimizer = sw.optimizer(model, made[0], **made[1])
    losses, gradients = [], []
    for step in [*batches, None]:
        optimizer.zero_grad()
        losses.append(model.finish() if step is None else model.train_step(step))
        gradients.append(gradients_of(model))
        optimizer.step()
    return losses, gradients, model.full_state_dict()


def assert_near(found: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet"])
@pytest.mark.parametrize(("plan", "devices"), NAMED, ids=lambda it: str(it))
def test_equal_to_the_definition_on_one_device(name: str, plan: str, devices: int, optimizer: str) -> None:
    module, args = models.MODELS[name]()
    if "recompute" in plan and name == "resnet":
        pytest.skip("it has no layers that repeat")
    batches, make = given(args), OPTIMIZERS[optimizer]
    losses, gradients, last = simulated(module, batches, make)
    program = bundle(name, plan, devices)
    ranks = run_local(
        devices, lambda rank, comm: trained(parallel(program, module, comm), batches, make), rendezvous=True
    )
    for found, own, state in ranks:
        assert found[0] is None
        for at, (loss, expected) in enumerate(zip(found[1:], losses, strict=True)):
            assert loss is not None
            assert_near(loss, expected, f"loss {at}")
        assert own[0] == {}
        for (tensor, region), grad in own[1].items():
            if grad.shape == gradients[0][tensor].shape:
                assert_near(grad, gradients[0][tensor], f"gradient of {tensor} {region}")
        for key, value in last.items():
            assert_near(state[key], value, key)


def test_the_definition_is_another_one_than_that_of_steps_with_a_pause() -> None:
    """Or the test above could not fail."""
    module, args = models.MODELS["mlp"]()
    batches, make = given(args), OPTIMIZERS["momentum"]
    _, _, last = simulated(module, batches, make)
    plain = copy.deepcopy(module)
    optimizer = make[0](plain.parameters(), **make[1])
    for step in batches:
        optimizer.zero_grad()
        torch.stack([loss_of(plain, batch) / len(step) for batch in step]).sum().backward()
        optimizer.step()
    assert any(not torch.allclose(value, last[name]) for name, value in plain.named_parameters())
