"""The parallel program computes what the single device computes: the reference models, named plans and
random ones, all ranks in one process, float64."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch

import equality
import models
import shardwright as sw
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture

torch.set_num_threads(1)

MODELS = ["mlp", "gpt", "resnet", "two_losses"]
NAMED = [
    ("replicate", 2),
    ("data", 2),
    ("data", 3),
    ("data", 4),
    ("megatron", 2),
    ("megatron", 4),
    ("data:2 x megatron:2", 4),
    ("data:4 x megatron:2", 8),
    ("coshard:2", 1),
    ("coshard:4", 2),
    ("zero1", 2),
    ("zero1", 3),
    ("zero2", 3),
    ("zero2", 4),
    ("zero3", 2),
    ("zero3", 3),
    ("zero3", 4),
    ("zero3:2 x megatron:2", 4),
    ("data:2 x zero1:2", 4),
    ("data:2 x zero3:2", 4),
    ("zero3:2 x coshard:2", 2),
]
OF_INPUTS = " of inputs"
WITH_INPUTS = ["mlp", "resnet"]
# Random plans of a model; the seed of a plan is its number.
# So many random plans are looked at, and so many of these are run.
RANDOM, RUN = 100, 60
SHARE = 20
# Of random plans: the second has parameters and an optimizer's state that were updated, as all that follow.
STEPS = 2


@functools.cache
def model(name: str) -> tuple[Any, tuple[Any, ...], Captured, Graph]:
    """A reference model; `mlp of inputs` is one whose inputs require gradients."""
    module, args = getattr(models, name.removesuffix(OF_INPUTS))()
    if name.endswith(OF_INPUTS):
        args = tuple(x.requires_grad_() if x.is_floating_point() else x for x in args)
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text)


@functools.cache
def reference(name: str, steps: int) -> equality.Result:
    module, args, _, _ = model(name)
    return equality.reference(module, args, steps)


def bundle_of(plan: Plan, captured: Captured) -> tuple[Bundle, Compiled]:
    compiled = compile(plan)
    return Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", ""), compiled


def check(name: str, plan: Plan, steps: int = equality.STEPS) -> Compiled:
    module, args, captured, _ = model(name)
    bundle, compiled = bundle_of(plan, captured)
    actual = equality.run(bundle, module, args, steps)
    equality.assert_equal(actual, reference(name, steps), f"{name}, {plan!r}")
    return compiled


@pytest.mark.oldest
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("plan", "devices"), NAMED)
def test_named_plans(name: str, plan: str, devices: int) -> None:
    check(name, Plan.named(model(name)[3], plan, devices))


def random_plan(name: str, seed: int) -> Plan:
    return Plan.random(model(name)[3], 2 + seed % 3, seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, RUN, SHARE))
@pytest.mark.parametrize("name", MODELS)
def test_random_plans(name: str, start: int) -> None:
    for seed in range(start, start + SHARE):
        print(f"{name}, random plan with seed {seed}")
        check(name, random_plan(name, seed), STEPS)


@pytest.mark.parametrize("name", WITH_INPUTS)
@pytest.mark.parametrize(("plan", "devices"), NAMED[1:7])
def test_named_plans_with_gradients_of_inputs(name: str, plan: str, devices: int) -> None:
    check(name + OF_INPUTS, Plan.named(model(name + OF_INPUTS)[3], plan, devices))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, RUN // 3, SHARE))
@pytest.mark.parametrize("name", WITH_INPUTS)
def test_random_plans_with_gradients_of_inputs(name: str, start: int) -> None:
    for seed in range(start, start + SHARE):
        print(f"{name} of inputs, random plan with seed {seed}")
        check(name + OF_INPUTS, random_plan(name + OF_INPUTS, seed), STEPS)


def test_random_plans_split_most_operators() -> None:
    """A plan counts only if at least four of five operators that may be split are."""
    for name in MODELS:
        for seed in range(RANDOM):
            decisions = random_plan(name, seed).decisions
            able = [op for op, _, _ in decisions if op.dims]
            split = [op for op, splits, _ in decisions if op.dims and splits]
            assert len(split) >= 0.8 * len(able), (name, seed)


@pytest.mark.slow
def test_random_plans_meet_everything() -> None:
    """Every rule's every dim, every kind of transfer, value splits, nested and uneven splits, repeated
    devices: a counter at zero would mean that the random plans test less than they seem to."""
    seen: Counter[str] = Counter()
    wanted: set[str] = set()
    for name in MODELS:
        for op in model(name)[3].operators:
            wanted |= {f"{op.target} {op.rule} {dim}" for dim in op.dims}
        for seed in range(RANDOM):
            plan = random_plan(name, seed)
            for op, splits, devices in plan.decisions:
                count(seen, op, splits, devices)
            if seed < 60:
                for counts in compile(plan).counts:
                    seen.update(kind.split()[1] for kind in counts)
    missing = sorted(wanted - set(seen))
    assert not missing, f"never split: {missing}"
    kinds = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange"]
    kinds += ["reduce_gradients", "exchange_gradients", "value", "nested", "uneven", "repeated", "copies"]
    assert not [kind for kind in kinds if not seen[kind]], seen


def count(seen: Counter[str], op: Any, splits: list[tuple[str, int]], devices: list[int]) -> None:
    for dim, parts in splits:
        if dim == "value":
            seen["value"] += 1
        elif dim == "replicate":
            seen["copies"] += 1
        else:
            seen[f"{op.target} {op.rule} {dim}"] += 1
            seen["uneven"] += op.dims[dim] % parts != 0
    seen["nested"] += len(splits) > 1
    seen["repeated"] += len(set(devices)) < len(devices)


def layers(compiled: Compiled, phase: str) -> Counter[tuple[str, str]]:
    """Communications inside layers, by layer and kind."""
    inside: Counter[tuple[str, str]] = Counter()
    for when, kind, module, _ in compiled.communications:
        path = module.split(".")
        if when == phase and path[0] == "h" and len(path) > 1:
            inside[path[1], kind] += 1
    return inside


def test_megatron_has_two_all_reduces_a_layer_each_way() -> None:
    compiled = compile(Plan.named(model("gpt")[3], "megatron", 2))
    assert layers(compiled, "forward") == {("0", "all_reduce"): 2, ("1", "all_reduce"): 2}
    assert layers(compiled, "backward") == {("0", "all_reduce"): 2, ("1", "all_reduce"): 2}


def test_data_reduces_gradients_once() -> None:
    compiled = compile(Plan.named(model("mlp")[3], "data", 4))
    assert dict(compiled.counts[0]) == {"forward all_reduce": 1, "backward reduce_gradients": 1}


def test_coshard_needs_no_communication_on_one_device() -> None:
    compiled = compile(Plan.named(model("mlp")[3], "coshard:2", 1))
    assert dict(compiled.counts[0]) == {}
    assert "recompute=True" in compiled.files["rank_0.py"]


def test_the_same_plan_gives_the_same_bytes() -> None:
    for name in MODELS:
        plan = random_plan(name, 7)
        assert compile(plan).files == compile(plan).files
        assert Plan.parse(model(name)[3], plan.text).text == plan.text


def test_a_plan_file_says_what_the_plan_is() -> None:
    graph = model("gpt")[3]
    for name, devices in NAMED:
        plan = Plan.named(graph, name, devices)
        again = Plan.parse(graph, plan.text)
        assert compile(again).files.keys() == compile(plan).files.keys()
        assert again.text == plan.text


DROPOUT_PLANS = [("data", 2), ("megatron", 2), ("data:2 x megatron:2", 4), ("coshard:2", 1)]


@pytest.mark.parametrize(("plan", "devices"), DROPOUT_PLANS)
def test_dropout_draws_the_masks_of_the_single_device(plan: str, devices: int) -> None:
    module, args = models.gpt(dropout=0.2)
    captured = capture(module, args)
    bundle, _ = bundle_of(Plan.named(Graph(captured.graph_text), plan, devices), captured)
    torch.manual_seed(11)
    expected = equality.reference(module, args)

    equality.assert_equal(
        equality.run(bundle, module, args, options=equality.single_device(11)), expected, plan
    )


@pytest.mark.parametrize(("plan", "devices"), DROPOUT_PLANS)
def test_keyed_dropout_agrees_among_replicas(plan: str, devices: int) -> None:
    """`equality.run` refuses copies of a parameter that differ; another seed gives other masks."""
    module, args = models.gpt(dropout=0.2)
    captured = capture(module, args)
    bundle, _ = bundle_of(Plan.named(Graph(captured.graph_text), plan, devices), captured)
    first = equality.run(bundle, module, args, options=lambda: {"seed": 1})
    again = equality.run(bundle, module, args, options=lambda: {"seed": 1})
    other = equality.run(bundle, module, args, options=lambda: {"seed": 2})
    assert first.losses == again.losses
    assert first.losses != other.losses


@pytest.mark.parametrize(("plan", "devices"), DROPOUT_PLANS)
def test_keyed_dropout_is_the_same_under_every_plan(plan: str, devices: int) -> None:
    module, args = models.gpt(dropout=0.2)
    captured = capture(module, args)
    graph = Graph(captured.graph_text)
    one, actual = (
        equality.run(
            bundle_of(Plan.named(graph, name, number), captured)[0], module, args, options=lambda: {"seed": 1}
        )
        for name, number in (("data", 1), (plan, devices))
    )
    equality.assert_equal(actual, one, plan)


@pytest.mark.slow
def test_evaluation_is_a_program_of_its_own() -> None:
    module, args = models.gpt(dropout=0.2)
    trained = sw.parallelize(module, args, plan="replicate")
    trained.eval()
    module.eval()
    with torch.no_grad():
        assert torch.equal(trained(*args)[1], module(*args)[1])
    evaluated = sw.parallelize(module, args, plan="replicate", outputs="all")
    with torch.no_grad():
        logits, loss = evaluated(*args)
        assert torch.equal(logits, module(*args)[0])
        assert torch.equal(loss, module(*args)[1])
