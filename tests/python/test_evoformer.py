"""An Evoformer of three passes, of which the last learns: equal under named plans, and in blocks of passes."""

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
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture

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
]
BATCHES = 2


def example() -> Any:
    path = Path(__file__).parent.parent.parent / "examples" / "evoformer.py"
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


def check(plan: Plan) -> None:
    module, args, captured, _, expected = known()
    made = compile(plan)
    bundle = Bundle(dict(made.files), made.digest, plan.name, plan.devices, captured, made.proof, "")
    found = equality.run_steps(bundle, module, equality.micro_batches(args, BATCHES))
    equality.assert_equal(found, expected, plan.name)


@pytest.mark.parametrize(("plan", "devices"), NAMED)
def test_named_plans_equal_the_single_device(plan: str, devices: int) -> None:
    check(Plan.named(known()[3], plan, devices))


def test_every_operator_has_a_rule_and_the_batch_splits_all() -> None:
    graph = known()[3]
    assert all(op.rule for op in graph.operators)
    made = compile(Plan.named(graph, "data", 4))
    split, alike, _ = made.divided
    assert alike <= 8 and split > 100 * alike
    assert made.counts[0] == {"forward all_reduce": 2, "backward reduce_gradients": 1}


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
    # What is embedded in the first one is read by the last pass, too.
    assert blocks == {"forward": set("012345"), "backward": set("045")}
