"""Pipelines whose steps follow each other without a pause, with two versions of what is trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import live
import models
import shardwright as sw
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.errors import RuntimeFault, ShardwrightError
from shardwright.precision import precision_of
from shardwright.runtime import ParallelModule, TorchComm, load_program, run_local
from shardwright.runtime.shards.versions import Versions
from shardwright.start.compiling import sources

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
    every_batch = equality.micro_batches(args, sum(steps))
    return [[every_batch.pop(0) for _ in range(count)] for count in steps]


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
    """The definition, on one device: with v(-1) = v(0), batch t is computed forward and backward with
    v(t - 1), and the update with its gradients makes v(t + 1) of v(t). Losses, gradients of each batch, and
    the last version. After `pauses` it begins anew with what there is."""
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


def parallel(bundle_of: Bundle, module: nn.Module, comm: Any, **options: Any) -> ParallelModule:
    program = load_program(bundle_of.files, digest=bundle_of.digest, world=bundle_of.devices)
    return ParallelModule(program, comm, sources(module, bundle_of.captured), bundle_of.captured, **options)


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


def assert_near(actual: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11, msg=lambda text: f"{what}: {text}")


def assert_equal(ranks: Sequence[Any], expected: tuple[list[Tensor], list[State], State]) -> None:
    losses, gradients, last = expected
    for actual, grads, state in ranks:
        for at, (loss, wanted) in enumerate(zip(actual, losses, strict=True)):
            assert_near(loss, wanted, f"loss {at}")
        for at, (here, wanted) in enumerate(zip(grads, gradients, strict=True)):
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


@pytest.mark.slow
def test_it_begins_anew_after_it_has_finished() -> None:
    module, args = models.MODELS["gpt"]()
    batches, made = given(args), OPTIMIZERS["adamw"]
    program = bundle("gpt", "stages:2 x data:2 x 2bw", 4)

    def rank(_: int, comm: Any) -> Any:
        model = parallel(program, module, comm)
        memory = {id(p): p.data_ptr() for p in model.parameters()}
        outcome = trained(model, batches, made, pauses=(1, 2))
        assert memory == {id(p): p.data_ptr() for p in model.parameters()}
        return outcome

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
    assert_equal([training for _, training in ranks], expected)
    for state, output in zip(newest, ranks[0][0][1:], strict=True):
        module.load_state_dict(state)
        assert_near(equality.scalars(output)[0], equality.scalars(module(*args))[0], "output")


@pytest.mark.slow
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
        clipped = []
        for step in [*batches, None]:
            optimizer.zero_grad()
            _ = model.finish() if step is None else model.train_step(step)
            clipped.append(sw.clip_grad_norm_(model, 0.1))
            optimizer.step()
        return clipped, model.full_state_dict()

    for actual, state in run_local(4, rank):
        assert float(actual[0]) == 0.0
        for norm, wanted in zip(actual[1:], norms, strict=True):
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
    for actual, grads, state in run_local(
        2, lambda rank, comm: trained(parallel(program, module, comm), batches, made)
    ):
        torch.testing.assert_close(actual, losses, rtol=1e-5, atol=0)
        for here, wanted in zip(grads, gradients, strict=True):
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
    actual = run_local(2, lambda rank, comm: trained(parallel(program, module, comm), batches, made))
    with pytest.raises(AssertionError):
        assert_equal(actual, simulated(module, batches, made))


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


def refused(code: str, plan: str, name: str, act: Callable[[ParallelModule, Any], Any]) -> str:
    module, args = models.MODELS[name]()
    program = bundle(name, plan, 2)
    with pytest.raises(RuntimeFault) as raised:
        run_local(2, lambda rank, comm: act(parallel(program, module, comm), given(args, (8,))[0]))
    assert raised.value.code == code
    return str(raised.value)


UNDER_WAY: dict[str, Callable[[ParallelModule], Any]] = {
    "state_dict": lambda model: model.state_dict(),
    "full_state_dict": lambda model: model.full_state_dict(),
    "load_state_dict": lambda model: model.load_state_dict({}),
    "load_full_state_dict": lambda model: model.load_full_state_dict({}),
    "deepcopy": copy.deepcopy,
    "to": lambda model: model.to("cpu"),
    "save": lambda model: sw.save(model, None, "never"),
    "load": lambda model: sw.load(model, None, "never"),
}


@pytest.mark.parametrize("what", UNDER_WAY)
def test_what_would_leave_out_a_batch_under_way_is_refused(what: str) -> None:
    def act(model: ParallelModule, batches: Any) -> None:
        model.train_step(batches[:4])
        UNDER_WAY[what](model)

    assert "`model.finish()`" in refused("SW0813", "stages:2 x 2bw", "mlp", act)


def test_steps_with_too_few_micro_batches_are_refused() -> None:
    refusal = refused("SW0814", "stages:2 x 2bw", "mlp", lambda model, batches: model.train_step(batches[:1]))
    assert "a step of 1 micro-batches, on 2 stages" in refusal


def test_hooks_and_a_scaled_loss_are_refused() -> None:
    def hooked(model: ParallelModule, batches: Any) -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: None)
        model.train_step(batches)

    assert "a parameter has a hook" in refused("SW0814", "stages:2 x 2bw", "mlp", hooked)
    module, args = models.mlp()
    captured = capture(module.float(), [x.float() for x in args], precision=precision_of("fp16"))
    program = bundle_of(captured, "stages:2 x 2bw", 2)
    batches = given([x.float() for x in args], (4,))[0]
    with pytest.raises(RuntimeFault, match="float16 scales the loss"):
        run_local(2, lambda rank, comm: parallel(program, module, comm).train_step(batches))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("stages:2 x zero3:2 x 2bw", "is sharded between steps, or lives on the host"),
        ("stages:2 x zero1:2 x 2bw", "is sharded between steps, or lives on the host"),
        ("stages:4 x offload:parameters x 2bw", "is sharded between steps, or lives on the host"),
        ("stages:4 x interleaved x 2bw", "a device has several blocks"),
        ("stages:4 x bidirectional x 2bw", "a device has several blocks"),
        ("stages:4 x interlaced x 2bw", "a device has several blocks"),
    ],
)
def test_plans_that_steps_without_a_pause_cannot_have_are_refused(plan: str, message: str) -> None:
    graph = Graph(capture(*models.gpt(depth=8)).graph_text)
    with pytest.raises(ShardwrightError, match=message) as raised:
        compile(Plan.named(graph, plan, 4))
    assert raised.value.code == "SW0423"


def test_orders_by_hand_are_refused() -> None:
    graph = Graph(capture(*models.mlp()).graph_text)
    text = Plan.named(graph, "stages:2 x 2bw", 2).text
    for line, code in (("timetable 0: F0+1 B0\n", "SW0423"), ("order B0 < F0+2\n", "SW0329")):
        with pytest.raises(ShardwrightError) as raised:
            compile(Plan.parse(graph, text + line))
        assert raised.value.code == code


def test_other_shapes_need_an_end_before_them() -> None:
    module, args = models.mlp()
    small = [x[:4] for x in args]
    made = OPTIMIZERS["momentum"]
    steps = [given(args, (3,))[0], given(small, (3,))[0], given(args, (2,))[0]]

    def rank(_: int, comm: Any) -> Any:
        model = sw.parallelize(module, args, plan="stages:2 x 2bw", devices=2, comm=comm)
        with pytest.raises(RuntimeFault, match="micro-batches of different programs are in flight together"):
            model.train_step([steps[0][0], *steps[1]])
        return trained(model, steps, made, pauses=(0, 1))

    assert_equal(run_local(2, rank), simulated(module, steps, made, pauses=(0, 1)))


MEMORY = [("gpt", "stages:2 x 2bw", 2), ("gpt", "stages:2 x data:2 x 2bw", 4), ("mlp", "stages:2 x 2bw", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plan", "devices"), MEMORY)
def test_what_is_told_of_memory_is_what_lives(name: str, plan: str, devices: int) -> None:
    made: dict[str, Callable[[], models.Model]] = {
        "gpt": lambda: models.gpt(batch=8, time=32, vocabulary=200, depth=4),
        "mlp": lambda: models.mlp(batch=64, width=64, hidden=256, depth=4),
    }
    module, args = made[name]()
    captured = capture(module, args)
    program = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    lived = live.of_steps_without_a_pause(program, module, captured, args)
    for rank, measured in zip(program.memory(), lived, strict=True):
        predicted = rank.total - rank.peak["inputs"]
        assert abs(predicted - measured) <= 0.03 * measured, (rank.peak, rank.at, measured)


def test_the_second_version_is_told() -> None:
    graph = Graph(capture(*models.mlp(depth=4)).graph_text)
    plain, twice = (compile(Plan.named(graph, plan, 2)).memory() for plan in ("stages:2", "stages:2 x 2bw"))
    # The last stage has no micro-batch under way between steps.
    assert [b.peak["parameters"] / a.peak["parameters"] for a, b in zip(plain, twice, strict=True)] == [2, 1]
    for a, b in zip(plain, twice, strict=True):
        assert b.peak["gradients"] > a.peak["gradients"]


def _train(rank: int, made: Bundle, folder: str) -> None:
    module, args = models.MODELS["gpt"]()
    model = parallel(made, module, TorchComm(watch=False))
    outcome = trained(model, given(args), OPTIMIZERS["adamw"], pauses=(2,))
    torch.save(outcome, Path(folder, f"{rank}.pt"))


@pytest.mark.processes
@pytest.mark.parametrize("plan", ["stages:4 x 2bw", "stages:2 x data:2 x 2bw"])
def test_equal_to_the_definition_on_real_processes(plan: str, tmp_path: Path) -> None:
    sw.launch(_train, 4, (bundle("gpt", plan, 4), str(tmp_path)), timeout=300)
    module, args = models.MODELS["gpt"]()
    expected = simulated(module, given(args), OPTIMIZERS["adamw"], pauses=(2,))
    assert_equal([torch.load(tmp_path / f"{rank}.pt") for rank in range(4)], expected)


def test_a_batch_may_be_cut_into_its_micro_batches() -> None:
    module, args = models.mlp(batch=8)
    made = OPTIMIZERS["momentum"]
    steps = given(args, (1,) * 4)

    def rank(_: int, comm: Any) -> Any:
        model = sw.parallelize(module, args, plan="stages:2 x 2bw", micro_batches=4, comm=comm)
        return trained(model, [batch for [batch] in steps], made)

    assert_equal(run_local(2, rank), simulated(module, steps, made))


@pytest.mark.slow
def test_masks_are_those_of_the_batch() -> None:
    module, args = models.gpt(dropout=0.2)
    batches, made = given(args), OPTIMIZERS["momentum"]
    program = bundle_of(capture(module, args), "stages:4 x 2bw", 4)
    torch.manual_seed(5)
    expected = simulated(module, batches, made)
    drawn = equality.single_device(5)

    def rank(_: int, comm: Any) -> Any:
        return trained(parallel(program, module, comm, **drawn()), batches, made)

    assert_equal(run_local(4, rank), expected)
