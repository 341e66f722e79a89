"""Channels of convolution nets and features of graph nets are split, and equal to one device."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import channels
import equality
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture
from shardwright.report.computed_work import work_of

torch.set_num_threads(1)

PLANS = [
    ("megatron", 2),
    ("megatron", 4),
    ("coshard:2", 1),
]
WITH_ROWS = [("data:2 x megatron:2", 4), ("zero3:2 x megatron:2", 4)]
IMAGES = ["unet", "mobilenet", "convnext"]


@functools.cache
def model(name: str) -> tuple[Any, tuple[Any, ...], Captured, Graph, equality.Result]:
    module, args = channels.MODELS[name]()
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text), equality.reference(module, args)


def check(name: str, plan: str, devices: int) -> None:
    module, args, captured, graph, expected = model(name)
    compiled = compile(Plan.named(graph, plan, devices))
    bundle = Bundle(dict(compiled.files), compiled.digest, plan, devices, captured, "", "")
    equality.assert_equal(equality.run(bundle, module, args), expected, f"{name}, {plan}")


@pytest.mark.slow
@pytest.mark.parametrize("name", channels.MODELS)
@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_it_is_equal_to_the_single_device(name: str, plan: str, devices: int) -> None:
    check(name, plan, devices)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize(("plan", "devices"), WITH_ROWS)
def test_beside_the_rows_of_the_batch(name: str, plan: str, devices: int) -> None:
    check(name, plan, devices)


def compiled(name: str, devices: int) -> Compiled:
    return compile(Plan.named(model(name)[3], "megatron", devices))


def share(name: str, devices: int) -> float:
    """What the rank that computes most of it has of the single device's operations."""
    work = work_of(Plan.named(model(name)[3], "megatron", devices))
    return float(work["rank"] / work["model"])


SHARES = {"unet": 0.27, "mobilenet": 0.26, "convnext": 0.61, "gcn": 0.32, "sage": 0.27, "gat": 0.40}
"""On four ranks. Depthwise windows of a ConvNeXt read values that norms keep whole; what graph nets send
along edges between two layers that are split together is the same on each rank."""

COUNTS = {
    "unet": {
        "forward all_reduce": 7,
        "forward reduce_scatter": 3,
        "backward all_reduce": 6,
        "backward all_gather": 3,
    },
    "sage": {"forward all_reduce": 3, "backward all_reduce": 1},
}


@pytest.mark.parametrize("name", channels.MODELS)
def test_a_rank_computes_little_more_than_an_even_share(name: str) -> None:
    assert 0.25 <= share(name, 4) <= SHARES[name]


@pytest.mark.parametrize("name", COUNTS)
def test_what_is_communicated(name: str) -> None:
    """Of each pair one sum, and of a contraction that shares its channels one scattered and one gathered."""
    assert dict(compiled(name, 2).counts[0]) == COUNTS[name]


def test_every_operator_has_a_rule() -> None:
    for name in channels.MODELS:
        assert [op.target for op in model(name)[3].operators if op.rule is None] == [], name
