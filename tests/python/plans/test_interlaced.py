"""The vocabulary over all devices of a pipeline, in blocks of its own between the stages."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import equality
import shardwright as sw
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture
from shardwright.errors import PlanError
from shardwright.runtime import ParallelModule, TorchComm, load_program
from shardwright.start.compiling import sources

torch.set_num_threads(1)

MODELS = ["t5", "gpt2", "llama", "bert"]
PLANS = [
    ("stages:2 x interlaced", 2),
    ("stages:4 x interlaced", 4),
    ("stages:2 x data:2 x interlaced", 4),
    ("stages:2 x megatron:2 x interlaced x gpipe", 4),
    ("stages:2 x interleaved:2 x interlaced", 2),
]
BATCHES = 2


@functools.cache
def known(name: str) -> tuple[Any, Captured, Graph, equality.Result]:
    module, args, kwargs = model = zoo.MODELS[name]()
    assert not args
    with zoo.widened():
        captured = capture(module, args, kwargs)
        expected = equality.steps_reference(module, equality.micro_batches(kwargs, BATCHES))
    return model, captured, Graph(captured.graph_text), expected


def bundle(name: str, plan: Plan) -> tuple[Bundle, Compiled]:
    _, captured, _, _ = known(name)
    made = compile(plan)
    files = dict(made.files)
    return Bundle(files, made.digest, plan.name, plan.devices, captured, made.proof, ""), made


def check(name: str, plan: Plan) -> Compiled:
    (module, _, kwargs), _, _, expected = known(name)
    made, compiled = bundle(name, plan)
    actual = equality.run_steps(made, module, equality.micro_batches(kwargs, BATCHES))
    equality.assert_equal(actual, expected, f"{name}, {plan.name}")
    return compiled


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_it_is_equal_to_the_single_device(name: str, plan: str, devices: int) -> None:
    check(name, Plan.named(known(name)[2], plan, devices))


@pytest.mark.parametrize("name", MODELS)
def test_words_are_divided_over_all_ranks(name: str) -> None:
    text = Plan.named(known(name)[2], "stages:4 x interlaced", 4).text
    lines = [line for line in text.splitlines() if re.search(r"(vocab|v) 4 on", line)]
    assert any("cross_entropy" in line for line in lines)
    assert all(" on 0..4  #" in line for line in lines), lines
    _, made = bundle(name, Plan.named(known(name)[2], "stages:4", 4))
    _, ours = bundle(name, Plan.named(known(name)[2], "stages:4 x interlaced", 4))
    most = [max(rank.most["parameters"] for rank in it.memory("none")) for it in (made, ours)]
    assert most[1] < most[0]


def test_lookups_come_first_and_what_is_projected_last() -> None:
    """Both of T5's: those of the decoder behind the encoder would go round in a circle."""
    graph = known("t5")[2]
    plan = Plan.named(graph, "stages:4 x interlaced", 4)
    blocks = [line for line in plan.text.splitlines() if line.startswith("block")]
    assert len(blocks) == 6
    assert "%inputs_embeds" in blocks[0] and "%inputs_embeds_1" in blocks[0]
    assert "%lm_logits" in blocks[-1] and "%loss" in blocks[-1]


def test_stages_are_even_without_what_is_taken_out() -> None:
    graph = known("gpt2")[2]
    whole, apart = (Plan.named(graph, f"stages:2{more}", 2).text for more in ("", " x interlaced"))
    assert "%loss" in whole and whole != apart
    block_lines = [line for line in apart.splitlines() if line.startswith("block")]
    assert len(block_lines) == 4


def test_a_plan_by_hand() -> None:
    """T5's words over all four devices, its encoder and decoder layer by layer on one after another."""
    graph = known("t5")[2]
    text = 'shardwright-plan 1\nname "by hand"\ndevices 4\nop "*": single on 3\n'
    for at, layer in enumerate(["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"]):
        text += f'op "{layer}.*": single on {at}\n'
    text += 'op "encoder.embed_tokens": split vocab 4\nop "decoder.embed_tokens": split vocab 4\n'
    text += 'op "lm_head": split n 4\nop %reshape_20: split c 4\nop %loss: split v 4\n'
    text += 'block "encoder.embed_tokens" %shifted_input_ids..%inputs_embeds_1\n'
    text += 'block "encoder.block.0.*"\nblock "encoder.block.1.*" "encoder.final_layer_norm"\n'
    text += 'block "decoder.block.0.*"\nblock "decoder.block.1.*" "decoder.final_layer_norm"\n'
    text += 'block "lm_head" %reshape_20..%loss\n'
    check("t5", Plan.parse(graph, text))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "plan", "code", "words"),
    [
        ("gpt2", "data:2 x interlaced", "SW0310", "for a pipeline"),
    ],
)
def test_what_it_cannot_be_is_refused(model: str, plan: str, code: str, words: str) -> None:
    module, args, kwargs = zoo.MODELS[model]()
    with zoo.widened():
        graph = Graph(capture(module, args, kwargs).graph_text)
    with pytest.raises(PlanError) as caught:
        Plan.named(graph, plan, 2)
    assert code in str(caught.value) and words in str(caught.value)


def test_a_model_without_words_is_refused() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    graph = Graph(capture(module, (torch.randn(4, 8),)).graph_text)
    with pytest.raises(PlanError, match="finds no vocabulary"):
        Plan.named(graph, "stages:2 x interlaced", 2)


def _train(rank: int, made: Bundle, folder: str) -> None:
    module, _, kwargs = zoo.t5()
    program = load_program(made.files, digest=made.digest, world=made.devices)
    model = ParallelModule(program, TorchComm(watch=False), sources(module, made.captured), made.captured)
    torch.save(
        equality.train_steps(model, equality.micro_batches(kwargs, BATCHES)), Path(folder, f"{rank}.pt")
    )


@pytest.mark.processes
def test_four_processes_are_equal_to_the_single_device(tmp_path: Path) -> None:
    made, _ = bundle("t5", Plan.named(known("t5")[2], "stages:4 x interlaced", 4))
    sw.launch(_train, 4, (made, str(tmp_path)), timeout=300)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(4)]
    result = equality.assemble([([], held) for _, held in ranks])
    result.losses = ranks[0][0]
    equality.assert_equal(result, known("t5")[3], "four processes")
