"""Models of Transformers, unchanged, under the plans of `test_equal.py`: all ranks in one process."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import equality
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture

torch.set_num_threads(1)

NAMED = [
    ("replicate", 2),
    ("data", 2),
    ("data", 3),
    ("megatron", 2),
    ("megatron", 4),
    ("data:2 x megatron:2", 4),
    ("zero1", 3),
    ("zero3", 2),
    ("zero3:2 x megatron:2", 4),
    ("coshard:2", 1),
]
# So many random plans are looked at, and so many of these are run.
RANDOM, RUN = 50, 20
SHARE = 10
# Of random plans: the second has parameters and an optimizer's state that were updated, as all that follow.
STEPS = 2


@dataclass
class Prepared:
    model: zoo.Model
    captured: Captured
    graph: Graph
    _expected: dict[int, equality.Result] = field(default_factory=dict)

    def expected(self, steps: int) -> equality.Result:
        module, args, kwargs = self.model
        if steps not in self._expected:
            with zoo.widened():
                self._expected[steps] = equality.reference(module, args, steps, kwargs)
        return self._expected[steps]


def prepared(model: zoo.Model) -> Prepared:
    module, args, kwargs = model
    with zoo.widened():
        captured = capture(module, args, kwargs)
    assert captured.verified and "f32[" not in captured.graph_text
    return Prepared(model, captured, Graph(captured.graph_text))


@functools.cache
def known(name: str) -> Prepared:
    return prepared(zoo.MODELS[name]())


@functools.cache
def small(name: str) -> Prepared:
    return known(name) if zoo.SMALL[name] is zoo.MODELS[name] else prepared(zoo.SMALL[name]())


def bundle_of(it: Prepared, plan: Plan) -> tuple[Bundle, Compiled]:
    compiled = compile(plan)
    return Bundle(
        dict(compiled.files), compiled.digest, plan.name, plan.devices, it.captured, "", ""
    ), compiled


def check(it: Prepared, plan: Plan, what: str, steps: int = equality.STEPS) -> None:
    module, args, kwargs = it.model
    bundle, _ = bundle_of(it, plan)
    equality.assert_equal(equality.run(bundle, module, args, steps, kwargs=kwargs), it.expected(steps), what)


@pytest.mark.parametrize(("plan", "devices"), NAMED)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_named_plans(name: str, plan: str, devices: int) -> None:
    it = known(name)
    check(it, Plan.named(it.graph, plan, devices), f"{name}, {plan}")


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), [("data", 3), ("megatron", 2)])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_attention_without_a_fused_operator(name: str, plan: str, devices: int) -> None:
    it = prepared(getattr(zoo, name)(attention="eager"))
    assert "scaled_dot_product_attention" not in it.captured.graph_text
    check(it, Plan.named(it.graph, plan, devices), f"{name}, {plan}")


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 4])
def test_one_key_for_all_heads_and_one_for_each(groups: int) -> None:
    it = prepared(zoo.llama(groups=groups))
    check(it, Plan.named(it.graph, "megatron", 4), f"{groups} heads of keys")


def random_plan(it: Prepared, seed: int) -> Plan:
    return Plan.random(it.graph, 2 + seed % 3, seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, RUN, SHARE))
@pytest.mark.parametrize("name", zoo.MODELS)
def test_random_plans(name: str, start: int) -> None:
    it = small(name)
    for seed in range(start, start + SHARE):
        check(it, random_plan(it, seed), f"{name}, random plan with seed {seed}", STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.MODELS)
def test_random_plans_split_most_operators(name: str) -> None:
    """A plan counts only if at least four of five operators that may be split are."""
    it = small(name)
    for seed in range(RANDOM):
        able = [splits for op, splits, _ in random_plan(it, seed).decisions if op.dims]
        assert len([splits for splits in able if splits]) >= 0.8 * len(able), seed


# ---- modes and variants ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), [("data", 2), ("megatron", 2), ("coshard:2", 1)])
def test_keyed_dropout_agrees_among_replicas(plan: str, devices: int) -> None:
    """`equality.run` refuses copies of a parameter that differ; another seed gives other masks."""
    module, args, kwargs = zoo.bert(dropout=0.2)
    with zoo.widened():
        captured = capture(module, args, kwargs)
    compiled = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    bundle = Bundle(dict(compiled.files), compiled.digest, plan, devices, captured, "", "")

    def losses(seed: int) -> dict[str, Tensor]:
        return equality.run(bundle, module, args, options=lambda: {"seed": seed}, kwargs=kwargs).losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


@pytest.mark.slow
def test_checkpointing_in_the_model_is_a_mark() -> None:
    module, args, kwargs = zoo.llama()
    plain = capture(module, args, kwargs)
    module.gradient_checkpointing_enable()
    captured = capture(module, args, kwargs)
    assert captured.verified
    assert operators(captured.graph_text) == operators(plain.graph_text)
    assert " span [1]" in captured.graph_text and " span [" not in plain.graph_text


def operators(text: str) -> list[str]:
    return [line.split(' in "')[0] for line in text.splitlines() if line.startswith("op ")]


@pytest.mark.parametrize("training", [True, False])
def test_a_call_without_labels_has_no_loss(training: bool) -> None:
    module, args, kwargs = zoo.llama()
    module.train(training)
    with zoo.widened(), torch.set_grad_enabled(training):
        captured = capture(module, args, {"input_ids": kwargs["input_ids"]})
        logits = module(input_ids=kwargs["input_ids"]).logits
    assert captured.verified
    bundle, _ = without_loss(captured)
    program: Any = equality.load_program(bundle.files, digest=bundle.digest, world=2)
    values = equality.sources(module, captured)

    def rank(rank: int, comm: Any) -> Tensor:
        model = equality.ParallelModule(program, comm, values, captured, training=training)
        return model(input_ids=kwargs["input_ids"]).logits.detach()

    for actual in equality.run_local(2, rank):
        torch.testing.assert_close(actual, logits.detach(), rtol=1e-10, atol=1e-12)


def without_loss(captured: Captured) -> tuple[Bundle, Compiled]:
    compiled = compile(Plan.named(Graph(captured.graph_text), "megatron", 2), "all")
    return Bundle(dict(compiled.files), compiled.digest, "megatron", 2, captured, "", ""), compiled


@pytest.mark.slow
def test_a_model_that_computes_partly_in_float32() -> None:
    """As the model is: its norms and its loss are in float32, whatever the weights are."""
    module, args, kwargs = zoo.llama()
    captured = capture(module, args, kwargs)
    assert captured.verified and "f32[" in captured.graph_text
    compiled = compile(Plan.named(Graph(captured.graph_text), "data:2 x megatron:2", 4))
    bundle = Bundle(dict(compiled.files), compiled.digest, "mixed", 4, captured, "", "")
    actual = equality.run(bundle, module, args, 1, kwargs=kwargs)
    expected = equality.reference(module, args, 1, kwargs)
    for name, loss in expected.losses.items():
        torch.testing.assert_close(actual.losses[name], loss, rtol=1e-5, atol=0)
    for name, gradient in expected.gradients.items():
        gap = float((actual.gradients[name] - gradient).norm())
        assert gap <= 1e-5 * max(float(gradient.norm()), 1e-3), name


def random_swin(plan: str, devices: int) -> tuple[zoo.Model, Bundle]:
    """With dropout, and with whole paths left out by random numbers of the model's own."""
    module, args, kwargs = zoo.swin(1, dropout=0.3)
    with zoo.widened():
        captured = capture(module, args, kwargs)
    assert "aten.rand.default" in captured.graph_text
    made = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    assert made.unknown == []
    return (module, args, kwargs), Bundle(dict(made.files), made.digest, plan, devices, captured, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), [("data", 2), ("megatron", 2), ("coshard:2", 1)])
def test_paths_are_left_out_alike_on_all_ranks(plan: str, devices: int) -> None:
    """`equality.run` refuses copies of a parameter that differ; another seed leaves out others."""
    (module, args, kwargs), bundle = random_swin(plan, devices)

    def losses(seed: int) -> dict[str, Tensor]:
        return equality.run(bundle, module, args, options=lambda: {"seed": seed}, kwargs=kwargs).losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), [("data", 2), ("megatron", 2)])
def test_paths_are_left_out_as_on_the_single_device(plan: str, devices: int) -> None:
    (module, args, kwargs), bundle = random_swin(plan, devices)
    torch.manual_seed(11)
    with zoo.widened():
        expected = equality.reference(module, args, kwargs=kwargs)

    actual = equality.run(bundle, module, args, options=equality.single_device(11), kwargs=kwargs)
    equality.assert_equal(actual, expected, plan)
