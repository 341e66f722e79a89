"""The second half of the zoo under the same plans as the first: T5, Whisper, Swin, Mixtral."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import equality
import zoo
import zoo_b
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import capture
from test_zoo import NAMED, RANDOM, SHARE, Prepared, check, inside_layers, prepared, random_plan

SPLIT = {"t5": (0.7, 0.35), "whisper": (0.9, 0.55), "swin": (0.6, 0.3), "mixtral": (0.75, 0.35)}
"""Of the operators that may be split, how many `data` and `megatron` split at least."""


@functools.cache
def known(name: str) -> Prepared:
    return prepared(zoo_b.MODELS[name]())


@functools.cache
def small(name: str) -> Prepared:
    return prepared(zoo_b.SMALL[name]())


@pytest.mark.parametrize(("plan", "devices"), NAMED)
@pytest.mark.parametrize("name", zoo_b.MODELS)
def test_named_plans(name: str, plan: str, devices: int) -> None:
    it = known(name)
    check(it, Plan.named(it.graph, plan, devices), f"{name}, {plan}")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, RANDOM, SHARE))
@pytest.mark.parametrize("name", zoo_b.MODELS)
def test_random_plans(name: str, start: int) -> None:
    it = small(name)
    for seed in range(start, start + SHARE):
        check(it, random_plan(it, seed), f"{name}, random plan with seed {seed}")


@pytest.mark.parametrize("name", zoo_b.MODELS)
def test_random_plans_split_most_operators(name: str) -> None:
    it = small(name)
    for seed in range(RANDOM):
        able = [splits for op, splits, _ in random_plan(it, seed).decisions if op.dims]
        assert len([splits for splits in able if splits]) >= 0.8 * len(able), seed


@pytest.mark.parametrize("name", zoo_b.MODELS)
def test_every_operator_has_a_rule(name: str) -> None:
    it = known(name)
    assert [op.target for op in it.graph.operators if op.rule is None] == []
    for plan, least in zip(("data", "megatron"), SPLIT[name], strict=True):
        assert share_that_is_split(it, plan) >= least, plan


def share_that_is_split(it: Prepared, plan: str) -> float:
    decisions = [splits for op, splits, _ in Plan.named(it.graph, plan, 2).decisions if op.dims]
    split = [splits for splits in decisions if any(on != "replicate" for on, _ in splits)]
    return len(split) / len(decisions)


def compiled(name: str, plan: str, devices: int) -> Compiled:
    return compile(Plan.named(known(name).graph, plan, devices))


def counts(found: Compiled, phase: str) -> dict[str, int]:
    return {
        kind.removeprefix(f"{phase} "): n for kind, n in found.counts[0].items() if kind.startswith(phase)
    }


@pytest.mark.parametrize(
    ("name", "layers", "each"),
    [
        ("t5", "encoder.block.", 2),
        ("t5", "decoder.block.", 3),
        ("whisper", "model.encoder.layers.", 2),
        ("whisper", "model.decoder.layers.", 3),
        ("mixtral", "model.layers.", 2),
    ],
)
def test_megatron_has_one_all_reduce_for_each_pair(name: str, layers: str, each: int) -> None:
    """Self-attention, attention to the encoder, and what is between two linears; nothing else."""
    found = inside_layers(compiled(name, "megatron", 2), layers)
    forward = {layer: n for (phase, layer, kind), n in found.items() if phase == "forward"}
    assert forward == {"0": each, "1": each}
    assert {kind for _, _, kind in found} == {"all_reduce"}


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        # The pairs; lookups in a split vocabulary, and the loss over it: maximum, sum, target.
        ("t5", 10 + 2 + 3, 10 + 1 + 1),
        ("whisper", 10 + 2 + 3, 10 + 1 + 1),
        ("swin", 8 + 3, 8 + 1),
        ("mixtral", 4 + 1 + 3, 4 + 1 + 2),
    ],
)
def test_megatron_communicates_nothing_else(name: str, forward: int, backward: int) -> None:
    """Backward: what each pair reads, the encoder's result, which all decoder layers read, and the last; of
    Mixtral the weights of the experts, too."""
    found = compiled(name, "megatron", 2)
    assert counts(found, "forward") == {"all_reduce": forward}
    assert counts(found, "backward") == {"all_reduce": backward}


@pytest.mark.parametrize(
    ("name", "forward", "tables"),
    [("t5", 2, 2), ("whisper", 2, 0), ("swin", 2, 0), ("mixtral", 6, 0)],
)
def test_data_communicates_the_loss_and_the_gradients(name: str, forward: int, tables: int) -> None:
    """T5 adds a table of positions to every row: its gradient is summed before the lookup. Mixtral counts
    the tokens of each expert, and their probabilities, in each of its layers."""
    found = compiled(name, "data", 4)
    assert counts(found, "forward") == {"all_reduce": forward}
    backward = counts(found, "backward")
    assert backward.pop("all_reduce", 0) == tables
    assert backward == {"reduce_gradients": 1}


def random_swin(plan: str, devices: int) -> tuple[zoo_b.Model, Bundle]:
    """With dropout, and with whole paths left out by random numbers of the model's own."""
    module, args, kwargs = zoo_b.swin(1, dropout=0.3)
    with zoo.widened():
        captured = capture(module, args, kwargs)
    assert "aten.rand.default" in captured.graph_text
    made = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    assert made.unknown == []
    return (module, args, kwargs), Bundle(dict(made.files), made.digest, plan, devices, captured, "", "")


@pytest.mark.parametrize(("plan", "devices"), [("data", 2), ("megatron", 2), ("coshard:2", 1)])
def test_paths_are_left_out_alike_on_all_ranks(plan: str, devices: int) -> None:
    """`equality.run` refuses copies of a parameter that differ; another seed leaves out others."""
    (module, args, kwargs), bundle = random_swin(plan, devices)

    def losses(seed: int) -> dict[str, Tensor]:
        return equality.run(bundle, module, args, options=lambda: {"seed": seed}, kwargs=kwargs).losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


@pytest.mark.parametrize(("plan", "devices"), [("data", 2), ("megatron", 2)])
def test_paths_are_left_out_as_on_the_single_device(plan: str, devices: int) -> None:
    (module, args, kwargs), bundle = random_swin(plan, devices)
    torch.manual_seed(11)
    with zoo.widened():
        expected = equality.reference(module, args, kwargs=kwargs)

    def options() -> dict[str, Any]:
        return {"randomness": "single-device", "generator": torch.Generator().manual_seed(11)}

    found = equality.run(bundle, module, args, options=options, kwargs=kwargs)
    equality.assert_equal(found, expected, plan)
