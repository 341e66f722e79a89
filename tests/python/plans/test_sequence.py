"""Sequences over devices: equal to the single device, and what each layer communicates for it."""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import Any

import pytest
import torch

import equality
import models
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture

torch.set_num_threads(1)

PLANS = [
    ("sequence", 2),
    ("sequence", 3),
    ("data:2 x sequence:2", 4),
    ("sequence:2 x megatron:2", 4),
    ("zero3:2 x sequence:2", 4),
    ("sequence:2 x recompute", 2),
    ("zigzag", 2),
    ("zigzag", 3),
    ("zigzag:2 x megatron:2", 4),
    ("zero3:2 x zigzag:2", 4),
    ("ulysses", 2),
    ("megatron-sp", 2),
    ("data:2 x megatron-sp:2", 4),
    ("megatron-sp x recompute", 2),
    ("ulysses", 3),
    ("data:2 x ulysses:2", 4),
    ("ulysses:2 x recompute", 2),
]


def gpt() -> zoo.Model:
    module, args = models.gpt()
    return module, args, {}


def unmasked_bert() -> zoo.Model:
    module, args, kwargs = zoo.bert()
    del kwargs["attention_mask"]
    return module, args, kwargs


def large_vit() -> zoo.Model:
    """196 patches and one more token, which no number of devices divides."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        image_size=28,
        patch_size=2,
        num_labels=7,
    )
    batch = {"pixel_values": zoo.image(3, 28, 2), "labels": torch.randint(7, (2,))}
    return zoo.prepared(ViTForImageClassification(config)), (), batch


MODELS = {
    "gpt": gpt,
    "gpt2": zoo.gpt2,
    "llama": zoo.llama,
    "bert": zoo.bert,
    "bert without a mask": unmasked_bert,
    "vit": large_vit,
    "t5": zoo.t5,
}


@functools.cache
def known(name: str) -> tuple[zoo.Model, Captured, Graph, equality.Result]:
    module, args, kwargs = MODELS[name]()
    with zoo.widened():
        captured = capture(module, args, kwargs)
        expected = equality.reference(module, args, kwargs=kwargs)
    return (module, args, kwargs), captured, Graph(captured.graph_text), expected


def bundle(plan: Plan, captured: Captured) -> Bundle:
    compiled = compile(plan)
    return Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")


@pytest.mark.parametrize(("plan", "devices"), PLANS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_divided_sequence_equals_the_whole(name: str, plan: str, devices: int) -> None:
    (module, args, kwargs), captured, graph, expected = known(name)
    made = bundle(Plan.named(graph, plan, devices), captured)
    actual = equality.run(made, module, args, kwargs=kwargs)
    equality.assert_equal(actual, expected, f"{name}, {plan}")


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["sequence", "zigzag", "ulysses"])
def test_attention_without_a_fused_operator(plan: str) -> None:
    module, args, kwargs = zoo.llama(attention="eager")
    with zoo.widened():
        captured = capture(module, args, kwargs)
        expected = equality.reference(module, args, kwargs=kwargs)
    assert "scaled_dot_product_attention" not in captured.graph_text
    made = bundle(Plan.named(Graph(captured.graph_text), plan, 2), captured)
    equality.assert_equal(equality.run(made, module, args, kwargs=kwargs), expected, plan)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["sequence", "zigzag", "ulysses"])
@pytest.mark.parametrize("causal", [True, False])
def test_masks_of_a_part_are_those_of_the_single_device(plan: str, causal: bool) -> None:
    module, args, kwargs = (zoo.llama if causal else zoo.bert)(dropout=0.3)
    with zoo.widened():
        captured = capture(module, args, kwargs)
        torch.manual_seed(7)
        expected = equality.reference(module, args, kwargs=kwargs)
    made = bundle(Plan.named(Graph(captured.graph_text), plan, 2), captured)
    options = equality.single_device(7)
    actual = equality.run(made, module, args, options=options, kwargs=kwargs)
    equality.assert_equal(actual, expected, plan)


# ---- what is communicated -------------------------------------------------------------------

LAYER = re.compile(r"(?:layers|h|layer)\.(\d+)\b")


def inside(name: str, plan: str, devices: int) -> dict[str, set[tuple[tuple[str, int], ...]]]:
    """For each phase the communications inside of a layer, of all layers."""
    by_layer: dict[tuple[str, str], Counter[str]] = {}
    for phase, kind, path, _ in compile(Plan.named(known(name)[2], plan, devices)).communications:
        if layer := LAYER.search(path):
            by_layer.setdefault((phase, layer[1]), Counter())[kind] += 1
    phases: dict[str, set[tuple[tuple[str, int], ...]]] = {}
    for (phase, _), counts in by_layer.items():
        phases.setdefault(phase, set()).add(tuple(sorted(counts.items())))
    return phases


GATHERED = {"forward": {(("all_gather", 2),)}, "backward": {(("reduce_scatter", 2),)}}
EXCHANGED = {"forward": {(("exchange", 2),)}, "backward": {(("exchange", 2),)}}
TURNED = {"forward": {(("all_to_all", 4),)}, "backward": {(("all_to_all", 4),)}}


@pytest.mark.parametrize("name", ["gpt", "gpt2", "llama"])
@pytest.mark.parametrize(
    ("plan", "each"), [("sequence", GATHERED), ("zigzag", EXCHANGED), ("ulysses", TURNED)]
)
def test_a_layer_communicates_for_its_attention_and_nothing_else(name: str, plan: str, each: Any) -> None:
    assert inside(name, plan, 2) == each


def handed_over(name: str, plan: str, phase: str, devices: int) -> list[float]:
    """Bytes that each rank sends to others for what attention needs. Of an all-gather a rank is said to give
    what it has, of a reduce-scatter all that it brings."""
    sent = compile(Plan.named(known(name)[2], plan, devices)).bytes
    away = (devices - 1) / devices
    times = {"all_gather": devices - 1, "reduce_scatter": away, "all_to_all": away, "exchange": 1}
    return [sum(times[kind] * rank.get(f"{phase} {kind}", 0) for kind in times) for rank in sent]


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_parts_from_both_ends_send_as_many_bytes_as_parts_in_a_row(name: str, phase: str) -> None:
    sent = handed_over(name, "zigzag", phase, 4)
    assert sent == handed_over(name, "sequence", phase, 4) and sent[0] > 0


@pytest.mark.parametrize("plan", ["sequence", "zigzag", "ulysses"])
def test_keys_that_a_model_repeats_move_once(plan: str) -> None:
    """As many bytes as ring attention passes round, or as Ulysses sends."""
    module, _, batch = known("llama")[0]
    config: Any = module.config
    size = module.dtype.itemsize * batch["input_ids"].numel()
    each = size * config.hidden_size // config.num_attention_heads
    queries, keys = each * config.num_attention_heads, each * config.num_key_value_heads
    assert keys < queries
    ring, turned = (
        2 * keys * config.num_hidden_layers / 2,
        (2 * queries + 2 * keys) * config.num_hidden_layers / 4,
    )
    for phase in ("forward", "backward"):
        assert handed_over("llama", plan, phase, 2) == [turned if plan == "ulysses" else ring] * 2


# ---- what is computed -----------------------------------------------------------------------


def test_parts_from_both_ends_compute_as_much() -> None:
    def ranks(plan: str) -> list[float]:
        return Plan.named(known("gpt")[2], plan, 4).work[1]

    even, uneven = ranks("zigzag"), ranks("sequence")
    assert max(even) == min(even)
    assert uneven == sorted(uneven) and uneven[0] < uneven[-1]
    assert sum(uneven) == sum(even)
