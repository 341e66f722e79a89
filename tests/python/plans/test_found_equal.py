"""Plans that are found for models that nobody here wrote, on four devices: equal to the single device."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import equality
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import Found, compile
from shardwright.capture import Captured, capture
from shardwright.shipped import evoformer
from shardwright.start.auto_plan import Choice

torch.set_num_threads(1)

WORLD, BATCHES = 4, 2
CLUSTERS = ["dgx-v100:4x1", "ethernet-25g:2x2"]


def _evoformer() -> tuple[Any, Any, dict[str, Any]]:
    torch.manual_seed(0)
    config = evoformer.Config(residues=8, sequences=4, blocks=2, msa=8, pair=8, outer=2, wider=2, far=2)
    return evoformer.Evoformer(config).double(), evoformer.batch(config, 4), {}


MODELS = {"evoformer": _evoformer, **{name: zoo.MODELS[name] for name in ("llama", "swin", "t5")}}


@functools.cache
def known(name: str) -> tuple[Any, list[equality.Batch], Captured, Graph, equality.Result]:
    module, args, kwargs = MODELS[name]()
    batches = equality.micro_batches(kwargs or args, BATCHES)
    with zoo.widened():
        captured = capture(module, args, kwargs)
        expected = equality.steps_reference(module, batches)
    return module, batches, captured, Graph(captured.graph_text), expected


def searched(graph: Graph, cluster: str, memory: int | None = None) -> Found:
    return Choice(cluster, batches=BATCHES, memory=memory).search(graph, WORLD, every=True)


def found_plans(graph: Graph, cluster: str) -> Iterator[Plan]:
    """Those that have no name, and one whose order was searched, also where only half of the memory is there
    that the quickest needs."""
    free = searched(graph, cluster)
    _, needed, _ = free.rows[0]["memory"]
    for each in (free, searched(graph, cluster, needed // 2)):
        at = [at for at, row in enumerate(each.rows) if row["plan"].startswith(("auto", "found"))]
        ordered = [at for at, row in enumerate(each.rows) if row["order"] is not None]
        yield from map(each.plan, {*at[:2], *ordered[:1]})


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_found_is_equal_to_the_single_device(name: str, cluster: str) -> None:
    module, batches, captured, graph, expected = known(name)
    plans = {plan.text: plan for plan in found_plans(graph, cluster)}.values()
    assert len(plans) > 1
    for plan in plans:
        assert {device for _, _, devices in plan.decisions for device in devices} == set(range(WORLD))
        made = compile(plan)
        bundle = Bundle(dict(made.files), made.digest, plan.name, plan.devices, captured, made.proof, "")
        equality.assert_equal(equality.run_steps(bundle, module, batches), expected, plan.name)
