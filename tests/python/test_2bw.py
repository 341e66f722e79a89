"""Pipelines whose steps follow each other without a pause, with two versions of what is trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
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
from shardwright.precision import precision_of
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.runtime.shards.versions import Versions

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


def by_hand(module: nn.Module, step: Sequence[Any]) -> Tensor:
    losses = [equality.scalars(module(*batch))[0] for batch in step]
    loss = torch.stack(losses).mean()
    loss.backward()
    return loss.detach()


def simulated(
    module: nn.Module,
    batches: Sequence[Sequence[Any]],
    made: Made,
    pauses: Sequence[int] = (),
    run: Callable[[Any, Sequence[Any]], Any] = by_hand,
) -> tuple[list[Tensor], list[State], State]:
    """The definition, on one device: with v(-1) = v(0), batch t is computed forward and backward with v(t - 1),
    and the update with its gradients makes v(t + 1) of v(t). Losses, gradients of each batch, and the last
    version. After `pauses` it begins anew with what there is."""
    newest, computed = copy.deepcopy(module), copy.deepcopy(module)
    optimizer = made[0](newest.parameters(), **made[1])
    losses, gradients = [], []
    for number, step in enumerate(batches):
        # `computed` has v(t - 1), `newest` v(t).
        computed.zero_grad()
        losses.append(run(computed, step))
        gradients.append({n: p.grad.clone() for n, p in computed.named_parameters() if p.grad is not None})
        before = {name: p.detach().clone() for name, p in newest.named_parameters()}
        for name, parameter in newest.named_parameters():
            parameter.grad = gradients[-1].get(name)
        optimizer.step()
        after = dict(newest.named_parameters())
        with torch.no_grad():
            for name, parameter in computed.named_parameters():
                parameter.copy_(after[name] if number in pauses else before[name])
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
    model: ParallelModule,
    batches: Sequence[Any],
    made: Made,
    pauses: Sequence[int] = (),
    between: Callable[[ParallelModule], Any] = lambda _: None,
) -> tuple[list[Tensor], list[dict[Any, Tensor]], State]:
    """Losses and gradients of each batch, when they are there, and what there is at the end."""
    optimizer = sw.optimizer(model, made[0], **made[1])
    losses, gradients = [], []

    def update(loss: Tensor | None) -> None:
        if loss is not None:
            losses.append(loss)
            gradients.append(gradients_of(model))
        else:
            assert gradients_of(model) == {}
        optimizer.step()
        optimizer.zero_grad()
        between(model)

    for number, step in enumerate(batches):
        update(model.train_step(step))
        if number in pauses:
            update(model.finish())
    update(model.finish())
    assert model.finish() is None
    return losses, gradients, model.full_state_dict()


def assert_near(found: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11, msg=lambda text: f"{what}: {text}")


def assert_equal(ranks: Sequence[Any], expected: tuple[list[Tensor], list[State], State]) -> None:
    losses, gradients, last = expected
    for found, own, state in ranks:
        for at, (loss, wanted) in enumerate(zip(found, losses, strict=True)):
            assert_near(loss, wanted, f"loss {at}")
        for at, (here, wanted) in enumerate(zip(own, gradients, strict=True)):
            for (tensor, region), grad in here.items():
                # Of parts the updates tell.
                if grad.shape == wanted[tensor].shape:
                    assert_near(grad, wanted[tensor], f"gradient {at} of {tensor} {region}")
        for key, value in last.items():
            assert_near(state[key], value, key)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet"])
@pytest.mark.parametrize(("plan", "devices"), NAMED, ids=lambda it: str(it))
def test_equal_to_the_definition_on_one_device(name: str, plan: str, devices: int, optimizer: str) -> None:
    module, args = models.MODELS[name]()
    if name == "resnet" and ("recompute" in plan or "activations" in plan):
        pytest.skip("it has no layers that repeat")
    batches, made = given(args), OPTIMIZERS[optimizer]
    program = bundle(name, plan, devices)
    assert_equal(
        run_local(
            devices,
            lambda rank, comm: trained(parallel(program, module, comm), batches, made),
            rendezvous=True,
        ),
        simulated(module, batches, made),
    )


def test_it_begins_anew_after_it_has_finished() -> None:
    module, args = models.MODELS["gpt"]()
    batches, made = given(args), OPTIMIZERS["adamw"]
    program = bundle("gpt", "stages:2 x data:2 x 2bw", 4)

    def rank(_: int, comm: Any) -> Any:
        model = parallel(program, module, comm)
        memory = {id(p): p.data_ptr() for p in model.parameters()}
        found = trained(model, batches, made, pauses=(1, 2))
        assert memory == {id(p): p.data_ptr() for p in model.parameters()}
        return found

    assert_equal(run_local(4, rank), simulated(module, batches, made, pauses=(1, 2)))


@pytest.mark.parametrize("rendezvous", [False, True])
def test_a_model_that_is_called_between_steps_has_the_newest_version(rendezvous: bool) -> None:
    module, args = models.MODELS["mlp"]()
    batches, made = given(args), OPTIMIZERS["momentum"]
    program = bundle("mlp", "stages:4 x 2bw", 4)
    expected = simulated(module, batches, made)
    newest = [simulated(module, batches[:count], made)[2] for count in range(1, len(batches) + 1)]

    def rank(_: int, comm: Any) -> Any:
        model, outputs = parallel(program, module, comm), []

        def called(model: ParallelModule) -> None:
            with torch.no_grad():
                outputs.append(model(*args))

        return outputs, trained(model, batches, made, between=called)

    ranks = run_local(4, rank, rendezvous=rendezvous)
    assert_equal([found for _, found in ranks], expected)
    for state, output in zip(newest, ranks[0][0][1:], strict=True):
        module.load_state_dict(state)
        assert_near(equality.scalars(output)[0], equality.scalars(module(*args))[0], "output")


def test_gradients_are_clipped_by_the_norm_of_their_batch() -> None:
    module, args = models.MODELS["gpt"]()
    batches, made = given(args), OPTIMIZERS["momentum"]
    program = bundle("gpt", "stages:2 x data:2 x 2bw", 4)
    norms: list[Tensor] = []

    def clipped(newest: nn.Module, step: Sequence[Any]) -> Tensor:
        loss = by_hand(newest, step)
        norms.append(torch.nn.utils.clip_grad_norm_(newest.parameters(), 0.1))
        return loss

    expected = simulated(module, batches, made, run=clipped)

    def rank(_: int, comm: Any) -> Any:
        model = parallel(program, module, comm)
        optimizer = sw.optimizer(model, made[0], **made[1])
        found = []
        for step in [*batches, None]:
            optimizer.zero_grad()
            _ = model.finish() if step is None else model.train_step(step)
            found.append(sw.clip_grad_norm_(model, 0.1))
            optimizer.step()
        return found, model.full_state_dict()

    for found, state in run_local(4, rank):
        assert float(found[0]) == 0.0
        for norm, wanted in zip(found[1:], norms, strict=True):
            assert_near(norm, wanted, "norm")
        for key, value in expected[2].items():
            assert_near(state[key], value, key)


def test_leaves_that_are_casts_have_two_versions_too() -> None:
    """Against one device that runs the same program in half precision, to the bit but for sums of losses."""
    module, args = models.gpt()
    module = module.float()
    captured = capture(module, args, precision=precision_of("bf16"))
    batches, made = given(args), OPTIMIZERS["momentum"]

    def one(_: int, comm: Any) -> Any:
        model = parallel(bundle_of(captured, "replicate", 1), module, comm)
        return simulated(model, batches, made, run=lambda model, step: model.train_step(list(step)))

    [(losses, gradients, last)] = run_local(1, one)
    program = bundle_of(captured, "stages:2 x 2bw", 2)
    for found, own, state in run_local(
        2, lambda rank, comm: trained(parallel(program, module, comm), batches, made)
    ):
        torch.testing.assert_close(found, losses, rtol=1e-5, atol=0)
        for here, wanted in zip(own, gradients, strict=True):
            for (tensor, _), grad in here.items():
                torch.testing.assert_close(grad, wanted[tensor], rtol=1e-4, atol=1e-6)
        for key, value in last.items():
            torch.testing.assert_close(state[key], value, rtol=1e-4, atol=1e-6)


def test_without_what_is_kept_of_the_older_version_it_would_be_another_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted fault: backward reads what the optimizer has written since."""
    module, args = models.MODELS["mlp"]()
    batches, made = given(args), OPTIMIZERS["momentum"]
    program = bundle("mlp", "stages:2 x 2bw", 2)
    monkeypatch.setattr(Versions, "keep", lambda _: None)
    found = run_local(2, lambda rank, comm: trained(parallel(program, module, comm), batches, made))
    with pytest.raises(AssertionError):
        assert_equal(found, simulated(module, batches, made))


def test_the_definition_is_another_one_than_that_of_steps_with_a_pause() -> None:
    """Or the test above could not fail."""
    module, args = models.MODELS["mlp"]()
    batches, made = given(args), OPTIMIZERS["momentum"]
    _, _, last = simulated(module, batches, made)
    plain = copy.deepcopy(module)
    optimizer = made[0](plain.parameters(), **made[1])
    for step in batches:
        optimizer.zero_grad()
        by_hand(plain, step)
        optimizer.step()
    assert any(not torch.allclose(value, last[name]) for name, value in plain.named_parameters())
