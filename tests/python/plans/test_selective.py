"""`recompute:selective`: each layer is computed again but for what is dear to compute.

`recompute:attention`: but for products with weights.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import equality
import live
import models
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture

torch.set_num_threads(1)

MODELS = {
    "gpt": lambda: (*models.gpt(), {}),
    "llama": zoo.llama,
    "vit": zoo.vit,
    "t5": zoo.t5,
    "swin": zoo.swin,
}
DEAR = ("linear", "matmul", "convolution", "scaled_dot_product_attention")


@functools.cache
def known(name: str) -> tuple[zoo.Model, Captured, Graph, equality.Result]:
    module, args, kwargs = model = MODELS[name]()
    with zoo.widened():
        captured = capture(module, args, kwargs)
        expected = equality.reference(module, args, kwargs=kwargs)
    return model, captured, Graph(captured.graph_text), expected


@pytest.mark.slow
@pytest.mark.parametrize("word", ["selective", "attention"])
@pytest.mark.parametrize("axis", ["data:2", "megatron:2"])
@pytest.mark.parametrize("name", MODELS)
def test_the_result_is_the_same(name: str, axis: str, word: str) -> None:
    (module, args, kwargs), captured, graph, expected = known(name)
    plan = f"{axis} x recompute:{word}"
    named = Plan.named(graph, plan, 2)
    compiled = compile(named)
    assert any("recompute=True" in text for text in compiled.files.values())
    bundle = Bundle(dict(compiled.files), compiled.digest, plan, 2, captured, "", "")
    equality.assert_equal(equality.run(bundle, module, args, kwargs=kwargs), expected, f"{name}, {plan}")


@pytest.mark.parametrize("name", MODELS)
def test_what_is_dear_is_kept_and_all_else_of_a_layer_is_not(name: str) -> None:
    graph = known(name)[2]
    whole, selective = (
        Plan.named(graph, f"data:2 x recompute{word}", 2).recompute for word in ("", ":selective")
    )
    for layer, cheap in zip(whole, selective, strict=True):
        left = [op.target.split(".")[1] for op in layer if op.name not in {op.name for op in cheap}]
        assert set(left) <= set(DEAR) and len(left) >= 5, left
        assert not {op.target.split(".")[1] for op in cheap} & set(DEAR)


@pytest.mark.parametrize("name", MODELS)
def test_products_with_weights_are_kept_and_attention_is_not(name: str) -> None:
    graph = known(name)[2]
    whole, some = (Plan.named(graph, f"data:2 x recompute{word}", 2).recompute for word in ("", ":attention"))
    for layer, span in zip(whole, some, strict=True):
        names = {op.name for op in span}
        left = [op for op in layer if op.name not in names]
        assert len(left) >= 4 and all(op.target.split(".")[1] in ("linear", "convolution") for op in left)
        assert "scaled_dot_product_attention" in {op.target.split(".")[1] for op in span} or name == "t5"


@functools.cache
def deep() -> tuple[Any, Any, Captured, Graph]:
    """As wide as a product is dear."""
    module, args = models.gpt(batch=64, depth=6, width=128, vocabulary=16)
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text)


def plans() -> list[Plan]:
    words = ("recompute:none", "recompute:selective", "recompute")
    return [Plan.named(deep()[3], f"replicate x {word}", 1) for word in words]


@pytest.mark.slow
def test_little_is_computed_again() -> None:
    shares = [plan.work[2][0] / plan.work[1][0] for plan in plans()]
    none, selective, whole = shares
    assert none == 0 and 0 < selective < 0.01 and whole > 0.2, shares


@pytest.mark.slow
def test_what_is_kept_is_between_all_and_nothing() -> None:
    module, args, captured, _ = deep()
    step = lambda it: it(*args)[1].backward()  # noqa: E731
    none, selective, whole = (live.peak(compile(plan), module, captured, step) for plan in plans())
    assert whole < 0.8 * selective and selective < 0.8 * none, (whole, selective, none)


@pytest.mark.parametrize("use", ["data:2", "megatron:2"])
def test_a_file_says_it_too_and_prints_it(use: str) -> None:
    graph = known("gpt")[2]
    named = Plan.named(graph, f"{use} x recompute:selective", 2)
    text = f'shardwright-plan 1\nname "mine"\ndevices 2\nuse "{use}"\nrecompute "h.*" but dear\n'
    assert spans(Plan.parse(graph, text)) == spans(named)
    for printed in (named.text, named.folded):
        assert printed.endswith('\nrecompute "h.*" but dear\n')
        assert spans(Plan.parse(graph, printed)) == spans(named)


def spans(plan: Plan) -> list[list[str]]:
    return [[op.name for op in span] for span in plan.recompute]


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), [("data", 3), ("data:2 x megatron:2", 4)])
def test_masks_are_those_of_forward(plan: str, devices: int) -> None:
    module, args = models.gpt(dropout=0.2)
    captured = capture(module, args)
    named = Plan.named(Graph(captured.graph_text), f"{plan} x recompute:selective", devices)
    compiled = compile(named)
    torch.manual_seed(11)
    expected = equality.reference(module, args)
    bundle = Bundle(dict(compiled.files), compiled.digest, plan, devices, captured, "", "")
    ours = equality.run(bundle, module, args, options=equality.single_device(11))
    equality.assert_equal(ours, expected, plan)
