"""What programs of Transformers' models split and communicate, counted."""

from __future__ import annotations

from collections import Counter

import pytest

import shardwright as sw
import zoo
from shardwright import Plan
from shardwright._core import Compiled, compile
from test_zoo import Prepared, known

SPLIT = {"t5": (0.7, 0.35), "whisper": (0.9, 0.55), "swin": (0.6, 0.3), "mixtral": (0.75, 0.35)}
"""Of the operators that may be split, how many `data` and `megatron` split at least."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLIT)
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


def counts(program: Compiled, phase: str) -> dict[str, int]:
    return {
        kind.removeprefix(f"{phase} "): n for kind, n in program.counts[0].items() if kind.startswith(phase)
    }


def inside_layers(made: Compiled, layers: str) -> Counter[tuple[str, str, str]]:
    """Communications inside layers, by phase, layer and kind."""
    counter: Counter[tuple[str, str, str]] = Counter()
    for phase, kind, module, _ in made.communications:
        if module.startswith(layers):
            counter[phase, module.removeprefix(layers).split(".")[0], kind] += 1
    return counter


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
    made = compiled(name, "megatron", 2)
    inside = inside_layers(made, layers)
    forward = {("forward", layer, "all_reduce"): 2 for layer in "01"}
    assert {key: count for key, count in inside.items() if key[0] == "forward"} == forward
    # The gradient of what a layer reads belongs to the operator before it, which may be another module's.
    backward = [kind for phase, kind, _, _ in made.communications if phase == "backward"]
    assert backward == ["all_reduce"] * 5


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_data_communicates_the_loss_and_the_gradients(name: str) -> None:
    counts = dict(compiled(name, "data", 4).counts[0])
    # A table of positions is added to every row, so that its gradient is summed before the lookup.
    positions = counts.pop("backward all_reduce", 0)
    assert positions == (name in ("bert", "gpt2"))
    assert counts == {"forward all_reduce": 1, "backward reduce_gradients": 1}


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_data_copies_only_what_has_no_batch(name: str) -> None:
    graph = known(name).graph
    for op, splits, _ in Plan.named(graph, "data", 2).decisions:
        if splits[0][0] == "replicate":
            _, outputs = op.shapes
            assert op.rule is not None, op.target
            assert not any(shape[:1] == [zoo.BATCH] for shape in outputs), (op.name, op.rule)


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
    inside = inside_layers(compiled(name, "megatron", 2), layers)
    forward = {layer: n for (phase, layer, kind), n in inside.items() if phase == "forward"}
    assert forward == {"0": each, "1": each}
    assert {kind for _, _, kind in inside} == {"all_reduce"}


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        # The pairs; lookups in a split vocabulary, and the loss over it: maximum, sum, target.
        ("t5", 10 + 2 + 3, 10 + 1),
        ("whisper", 10 + 2 + 3, 10 + 1),
        ("swin", 8 + 3, 8 + 1),
        ("mixtral", 4 + 1 + 3, 4 + 1),
    ],
)
def test_megatron_communicates_nothing_else(name: str, forward: int, backward: int) -> None:
    """Backward: what each pair reads, the encoder's result, which all decoder layers read, with that of the
    last of them; of Mixtral the weights of the experts, in the same messages."""
    program = compiled(name, "megatron", 2)
    assert counts(program, "forward") == {"all_reduce": forward}
    assert counts(program, "backward") == {"all_reduce": backward}


@pytest.mark.parametrize(
    ("name", "forward", "tables"),
    [("t5", 1, 0), ("whisper", 1, 0), ("swin", 1, 0), ("mixtral", 5, 0)],
)
def test_data_communicates_what_tables_and_experts_need_besides(name: str, forward: int, tables: int) -> None:
    """T5 adds a table of positions in every layer: all that they give to it is a part of the table's
    gradient. Mixtral counts the tokens of each expert, and their probabilities, in each of its layers."""
    program = compiled(name, "data", 4)
    assert counts(program, "forward") == {"all_reduce": forward}
    backward = counts(program, "backward")
    assert backward.pop("all_reduce", 0) == tables
    assert backward == {"reduce_gradients": 1}


PRODUCTS = [
    ("data", 3),
    ("megatron", 2),
    ("data:2 x megatron:2", 4),
    ("coshard:2", 1),
    ("data:2 x coshard:2", 2),
    ("megatron:2 x recompute", 2),
    ("expert", 2),
    ("data:2 x expert:2", 4),
]


@pytest.mark.parametrize("name", zoo.MODELS)
def test_named_plans_send_nothing_region_by_region(name: str) -> None:
    for plan, devices in PRODUCTS:
        try:
            named_plan = Plan.named(known(name).graph, plan, devices)
        except sw.ShardwrightError as error:
            assert "finds no" in str(error), plan
            continue
        for sent in compile(named_plan).bytes:
            assert not {kind: size for kind, size in sent.items() if "exchange" in kind and size}, plan
