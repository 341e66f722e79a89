"""Pipelines whose stages are found: real processes, beside the single device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import equality
import shardwright as sw
from models import MODELS
from shardwright import Bundle, Graph
from shardwright._core import Found, Plan, compile, verify
from shardwright.capture import capture
from shardwright.choosing import Choice
from shardwright.compiling import sources
from shardwright.runtime import ParallelModule, TorchComm, load_program

WORLD = 4
BATCHES = 5


def _found(graph: Graph) -> Found:
    return Choice("cpu:4", batches=BATCHES).search(graph, WORLD, every=True)


def _plans(graph: Graph) -> list[Plan]:
    found = _found(graph)
    plans = [found.plan(at) for at, row in enumerate(found.rows) if row["plan"].startswith("found, ")]
    assert found.pipelines is not None and found.pipelines[2] > 0
    assert len(plans) > 2
    return plans


def _train(rank: int, bundles: list[Bundle], folder: str) -> None:
    found = []
    for bundle in bundles:
        module, args = MODELS["gpt"]()
        program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
        values = sources(module, bundle.captured)
        model = ParallelModule(program, TorchComm(watch=False), values, bundle.captured)
        found.append(equality.train_steps(model, equality.micro_batches(args, BATCHES)))
    torch.save(found, Path(folder, f"{rank}.pt"))


@pytest.mark.processes
def test_equal_to_the_single_device(tmp_path: Path) -> None:
    module, args = MODELS["gpt"]()
    captured = capture(module, args)
    bundles = []
    for plan in _plans(Graph(captured.graph_text)):
        made = compile(plan)
        files = dict(made.files)
        bundles.append(
            Bundle(files, made.digest, plan.name, WORLD, captured, made.proof, captured.graph_text)
        )
    sw.launch(_train, WORLD, (bundles, str(tmp_path)), timeout=600)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]
    expected = equality.steps_reference(module, equality.micro_batches(args, BATCHES))
    for at, bundle in enumerate(bundles):
        result = equality.assemble([([], found[at][1]) for found in ranks])
        for losses, _ in (found[at] for found in ranks):
            assert losses == ranks[0][at][0]
        result.losses = ranks[0][at][0]
        equality.assert_equal(result, expected, bundle.plan)


def test_what_is_printed_is_the_plan_again() -> None:
    graph = Graph(capture(*MODELS["gpt"]()).graph_text)
    for plan in _plans(graph):
        assert Plan.parse(graph, plan.text).text == plan.text


def test_a_program_that_leaves_a_message_out_is_refused() -> None:
    text_of_graph = capture(*MODELS["gpt"]()).graph_text
    made = compile(_plans(Graph(text_of_graph))[0])
    verify(text_of_graph, dict(made.files))
    files = dict(made.files)
    name, text = next((name, text) for name, text in files.items() if "    run.send(" in text)
    lines = text.splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if line.strip().startswith("run.send("))
    files[name] = "".join(lines[:at] + lines[at + 1 :])
    with pytest.raises(sw.ShardwrightError):
        verify(text_of_graph, files)
