"""Models of Transformers, unchanged, under the plans of `test_equal.py`: all ranks in one process."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

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
    ("coshard:2", 1),
]
RANDOM = 100
SHARE = 10


@dataclass
class Prepared:
    model: zoo.Model
    captured: Captured
    graph: Graph
    expected: equality.Result


def prepared(model: zoo.Model, steps: int = equality.STEPS) -> Prepared:
    module, args, kwargs = model
    with zoo.widened():
        captured = capture(module, args, kwargs)
        expected = equality.reference(module, args, steps, kwargs)
    assert captured.verified and "f32[" not in captured.graph_text
    return Prepared(model, captured, Graph(captured.graph_text), expected)


@functools.cache
def known(name: str) -> Prepared:
    return prepared(zoo.MODELS[name]())


def bundle_of(it: Prepared, plan: Plan) -> tuple[Bundle, Compiled]:
    compiled = compile(plan)
    return Bundle(
        dict(compiled.files), compiled.digest, plan.name, plan.devices, it.captured, "", ""
    ), compiled


def check(it: Prepared, plan: Plan, what: str) -> None:
    module, args, kwargs = it.model
    bundle, _ = bundle_of(it, plan)
    equality.assert_equal(equality.run(bundle, module, args, kwargs=kwargs), it.expected, what)


@pytest.mark.parametrize(("plan", "devices"), NAMED)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_named_plans(name: str, plan: str, devices: int) -> None:
    it = known(name)
    check(it, Plan.named(it.graph, plan, devices), f"{name}, {plan}")


@pytest.mark.parametrize(("plan", "devices"), [("data", 3), ("megatron", 2)])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_attention_without_a_fused_operator(name: str, plan: str, devices: int) -> None:
    it = prepared(getattr(zoo, name)(attention="eager"))
    assert "scaled_dot_product_attention" not in it.captured.graph_text
    check(it, Plan.named(it.graph, plan, devices), f"{name}, {plan}")


@pytest.mark.parametrize("groups", [1, 4])
def test_one_key_for_all_heads_and_one_for_each(groups: int) -> None:
    it = prepared(zoo.llama(groups=groups))
    check(it, Plan.named(it.graph, "megatron", 4), f"{groups} heads of keys")


def random_plan(it: Prepared, seed: int) -> Plan:
    return Plan.random(it.graph, 2 + seed % 3, seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, RANDOM, SHARE))
@pytest.mark.parametrize("name", zoo.MODELS)
def test_random_plans(name: str, start: int) -> None:
    it = known(name)
    for seed in range(start, start + SHARE):
        check(it, random_plan(it, seed), f"{name}, random plan with seed {seed}")


@pytest.mark.parametrize("name", zoo.MODELS)
def test_random_plans_split_most_operators(name: str) -> None:
    """A plan counts only if at least four of five operators that may be split are."""
    it = known(name)
    for seed in range(RANDOM):
        able = [splits for op, splits, _ in random_plan(it, seed).decisions if op.dims]
        assert len([splits for splits in able if splits]) >= 0.8 * len(able), seed


# ---- what is communicated ------------------------------------------------------------------


def inside_layers(compiled: Compiled, layers: str) -> Counter[tuple[str, str, str]]:
    """Communications inside layers, by phase, layer and kind."""
    found: Counter[tuple[str, str, str]] = Counter()
    for phase, kind, module, _ in compiled.communications:
        if module.startswith(layers):
            found[phase, module.removeprefix(layers).split(".")[0], kind] += 1
    return found


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("llama", "model.layers."),
        ("vit", "vit.layers."),
        ("bert", "bert.encoder.layer."),
        ("gpt2", "transformer.h."),
    ],
)
def test_megatron_has_two_all_reduces_a_layer_each_way(name: str, layers: str) -> None:
    compiled = compile(Plan.named(known(name).graph, "megatron", 2))
    found = inside_layers(compiled, layers)
    forward = {("forward", layer, "all_reduce"): 2 for layer in "01"}
    assert {key: count for key, count in found.items() if key[0] == "forward"} == forward
    # The gradient of what a layer reads belongs to the operator before it, which may be another module's.
    backward = [kind for phase, kind, _, _ in compiled.communications if phase == "backward"]
    assert backward == ["all_reduce"] * 5


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_data_communicates_the_loss_and_the_gradients(name: str) -> None:
    counts = dict(compile(Plan.named(known(name).graph, "data", 4)).counts[0])
    # A table of positions is added to every row, so that its gradient is summed before the lookup.
    positions = counts.pop("backward all_reduce", 0)
    assert positions == (name in ("bert", "gpt2"))
    assert counts == {"forward all_reduce": 2, "backward reduce_gradients": 1}


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_data_copies_only_what_has_no_batch(name: str) -> None:
    graph = known(name).graph
    for op, splits, _ in Plan.named(graph, "data", 2).decisions:
        if splits[0][0] == "replicate":
            _, outputs = op.shapes
            assert op.rule is not None, op.target
            assert not any(shape[:1] == [zoo.BATCH] for shape in outputs), (op.name, op.rule)


# ---- modes and variants ---------------------------------------------------------------------


@pytest.mark.parametrize(("plan", "devices"), [("data", 2), ("megatron", 2), ("coshard:2", 1)])
def test_keyed_dropout_agrees_among_replicas(plan: str, devices: int) -> None:
    """`equality.run` refuses copies of a parameter that differ; another seed gives other masks."""
    module, args, kwargs = zoo.bert(dropout=0.2)
    with zoo.widened():
        captured = capture(module, args, kwargs)
    compiled = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    bundle = Bundle(dict(compiled.files), compiled.digest, plan, devices, captured, "", "")

    def losses(seed: int) -> dict[str, torch.Tensor]:
        return equality.run(bundle, module, args, options=lambda: {"seed": seed}, kwargs=kwargs).losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_checkpointing_in_the_model_is_left_to_the_plan() -> None:
    module, args, kwargs = zoo.llama()
    plain = capture(module, args, kwargs)
    module.gradient_checkpointing_enable()
    found = capture(module, args, kwargs)
    assert found.verified
    assert operators(found.graph_text) == operators(plain.graph_text)


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

    def rank(rank: int, comm: Any) -> torch.Tensor:
        model = equality.ParallelModule(program, comm, values, captured, training=training)
        return model(input_ids=kwargs["input_ids"]).logits.detach()

    for found in equality.run_local(2, rank):
        torch.testing.assert_close(found, logits.detach(), rtol=1e-10, atol=1e-12)


def without_loss(captured: Captured) -> tuple[Bundle, Compiled]:
    compiled = compile(Plan.named(Graph(captured.graph_text), "megatron", 2), "all")
    return Bundle(dict(compiled.files), compiled.digest, "megatron", 2, captured, "", ""), compiled


def test_a_model_that_computes_partly_in_float32() -> None:
    """As the model is: its norms and its loss are in float32, whatever the weights are."""
    module, args, kwargs = zoo.llama()
    captured = capture(module, args, kwargs)
    assert captured.verified and "f32[" in captured.graph_text
    compiled = compile(Plan.named(Graph(captured.graph_text), "data:2 x megatron:2", 4))
    bundle = Bundle(dict(compiled.files), compiled.digest, "mixed", 4, captured, "", "")
    found = equality.run(bundle, module, args, 1, kwargs=kwargs)
    expected = equality.reference(module, args, 1, kwargs)
    for name, loss in expected.losses.items():
        torch.testing.assert_close(found.losses[name], loss, rtol=1e-5, atol=0)
    for name, gradient in expected.gradients.items():
        gap = float((found.gradients[name] - gradient).norm())
        assert gap <= 1e-5 * max(float(gradient.norm()), 1e-3), name
