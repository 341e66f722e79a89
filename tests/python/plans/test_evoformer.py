"""An Evoformer of three passes, of which the last learns: equal under named plans and in blocks."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import equality
import shardwright as sw
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.errors import PlanError
from shardwright.runtime import ParallelModule, TorchComm, load_program
from shardwright.start.compiling import sources

torch.set_num_threads(1)

NAMED = [
    ("data", 2),
    ("data", 4),
    ("megatron", 2),
    ("megatron", 4),
    ("zero3", 4),
    ("data:2 x recompute", 2),
    ("coshard", 1),
    ("stages:2", 2),
    ("stages:4", 4),
    ("stages:2 x data:2 x gpipe", 4),
    ("stages:2 x kf1b", 2),
    ("stages:4 x kf1b:3", 4),
    ("stages:2 x kf1b x data:2", 4),
    ("stages:2 x kf1b x zero3:2 x recompute", 4),
    # Cut evenly, the last stage would have only what follows the trunk.
    ("stages:9 x kf1b", 9),
]
BATCHES = 2


def example() -> Any:
    path = Path(__file__).parents[3] / "examples" / "evoformer" / "train.py"
    spec = importlib.util.spec_from_file_location("evoformer", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["evoformer"] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def known() -> tuple[Any, Any, Captured, Graph, equality.Result]:
    torch.manual_seed(0)
    evoformer = example()
    config = evoformer.Config(residues=5, sequences=4, blocks=2, msa=8, pair=8, outer=2, wider=2, far=2)
    module, args = evoformer.Evoformer(config).double(), evoformer.batch(config, 4)
    captured = capture(module, args)
    graph = Graph(captured.graph_text)
    expected = equality.steps_reference(module, equality.micro_batches(args, BATCHES))
    return module, args, captured, graph, expected


def bundle(plan: Plan) -> Bundle:
    made = compile(plan)
    return Bundle(dict(made.files), made.digest, plan.name, plan.devices, known()[2], made.proof, "")


def check(plan: Plan) -> None:
    module, args, _, _, expected = known()
    actual = equality.run_steps(bundle(plan), module, equality.micro_batches(args, BATCHES))
    equality.assert_equal(actual, expected, plan.name)


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), NAMED)
def test_named_plans_equal_the_single_device(plan: str, devices: int) -> None:
    check(Plan.named(known()[3], plan, devices))


def test_every_operator_has_a_rule_and_the_batch_splits_all() -> None:
    graph = known()[3]
    assert all(op.rule for op in graph.operators)
    made = compile(Plan.named(graph, "data", 4))
    split, alike, _ = made.divided
    assert alike <= 8 and split > 100 * alike
    assert made.counts[0] == {"forward all_reduce": 1, "backward reduce_gradients": 1}


def passes(devices: int, schedule: str) -> Plan:
    """Each pass of the trunk in blocks over the same devices, one after another."""
    graph = known()[3]
    text = f'shardwright-plan 1\nname "passes"\ndevices {devices}\nop "*": single on 0\n'
    cuts = []
    for at, suffix in enumerate(["", "@1", "@2"]):
        for block in range(2):
            device = (2 * at + block) % devices
            text += f'op "trunk.blocks.{block}*{suffix}": single on {device}\n'
            # A glob of the first pass fits the others, too: later lines win.
            cuts.append(f'block "trunk.blocks.{block}*{suffix}"\n')
    return Plan.parse(graph, f"{text}{''.join(cuts)}schedule {schedule}\n")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("devices", [2, 4])
def test_blocks_of_passes_that_do_not_learn_have_no_backward(devices: int, schedule: str) -> None:
    plan = passes(devices, schedule)
    check(plan)
    files = dict(compile(plan).files)
    text = "".join(text for name, text in files.items() if name.endswith(".py"))
    blocks = {kind: set(re.findall(rf"def {kind}_(\d)\(", text)) for kind in ("forward", "backward")}
    # Of the first one the last pass reads what is embedded; norms of what is recycled go with that.
    assert blocks == {"forward": set("012345"), "backward": set("0345")}


@pytest.mark.parametrize("stages", [5, 9, 14, 16, 19])
def test_each_stage_has_a_part_of_each_call(stages: int) -> None:
    plan = Plan.named(known()[3], f"stages:{stages} x kf1b", stages)
    # A block without operators would have been refused.
    assert plan.devices == stages


def test_each_call_goes_through_all_stages_and_only_the_last_one_comes_back() -> None:
    plan = Plan.named(known()[3], "stages:4 x kf1b", 4)
    made = compile(plan)
    text = "".join(text for name, text in dict(made.files).items() if name.endswith(".py"))
    blocks = {
        kind: set(map(int, re.findall(rf"def {kind}_(\d+)\(", text))) for kind in ("forward", "backward")
    }
    # The first one looks letters up, which are learned, too.
    assert blocks == {"forward": set(range(12)), "backward": {0, 8, 9, 10, 11}}
    # What a stage holds it holds once, and no other stage does, but for what the heads of calls read.
    held = sum(rank.most["parameters"] for rank in made.memory())
    module = known()[0]
    assert held == sum(p.numel() * p.element_size() for p in module.parameters())


@pytest.mark.parametrize(
    ("plan", "words"),
    [("stages:2 x kf1b:2", "write `kf1b:3`, or `kf1b`"), ("data:2 x kf1b", "say how many stages there are")],
)
def test_what_cannot_be_is_refused(plan: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.named(known()[3], plan, 2)
    assert words in str(caught.value)


def test_a_model_that_calls_nothing_again_is_refused() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    graph = Graph(capture(module, (torch.randn(4, 8),)).graph_text)
    with pytest.raises(PlanError, match="no module is called several times"):
        Plan.named(graph, "stages:2 x kf1b", 2)


def _train(rank: int, made: Bundle, folder: str) -> None:
    module, args, *_ = known()
    program = load_program(made.files, digest=made.digest, world=made.devices)
    model = ParallelModule(program, TorchComm(watch=False), sources(module, made.captured), made.captured)
    torch.save(equality.train_steps(model, equality.micro_batches(args, BATCHES)), Path(folder, f"{rank}.pt"))


@pytest.mark.processes
def test_four_processes_are_equal_to_the_single_device(tmp_path: Path) -> None:
    made = bundle(Plan.named(known()[3], "stages:4 x kf1b", 4))
    sw.launch(_train, 4, (made, str(tmp_path)), timeout=300)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(4)]
    result = equality.assemble([([], held) for _, held in ranks])
    result.losses = ranks[0][0]
    equality.assert_equal(result, known()[4], "four processes")
