"""Plan files, names of plans and functions that make plans, each with something wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
import shardwright as sw
from refusing import refused
from shardwright._core import Graph, Plan
from shardwright.capture import capture
from shardwright.start.compiling import compile_model
from shardwright.start.planning import make_plan


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(capture(*models.mlp()).graph_text)


HEADER = "shardwright-plan 1\ndevices 4\n"
ALL = HEADER + 'op "*": replicate 4\n'

PLAN_FILES = {
    "wrong word": ALL + 'opp "*": single\n',
    "very long word": ALL + "x" * 1000 + "\n",
    "unknown path": ALL + 'op "layers.7.up": split n 4\n',
    "unknown tensor": ALL + "op %nope: split n 4\n",
    "unquoted path": ALL + "op layers.0.up: split n 4\n",
    "no colon": ALL + 'op "layers.0.up" split n 4\n',
    "unknown way to divide": ALL + 'op "layers.0.up": halve n\n',
    "dim that may not be split": ALL + 'op "*" *cumsum*: split b 2\n',
    "dim that does not exist": ALL + 'op "layers.0.up": split q 4\n',
    "value that may not be split": ALL + 'op "layers.0" *gelu*: split value 4\n',
    "more parts than the dim is long": ALL + 'op "layers.0.up": split n 65\n',
    "no parts": ALL + 'op "layers.0.up": split n 0\n',
    "parts that are no number": ALL + 'op "layers.0.up": split n 99999999999\n',
    "parts that fill the memory": ALL + 'op "layers.0.up": replicate 4000000000\n',
    "parts that overflow": ALL + 'op "layers.0.up": replicate 65536, replicate 65536\n',
    "device that does not exist": ALL + 'op "layers.0.up": split n 4 on 0 1 2 4\n',
    "device that is no number": ALL + 'op "layers.0.up": split n 4 on 0 1 2 x\n',
    "devices without end": ALL + 'op "layers.0.up": split n 4 on 0..4294967295\n',
    "fewer devices than parts": ALL + 'op "layers.0.up": split n 4 on 0 1 2\n',
    "missing operator": HEADER + 'op "layers.*": replicate 4\n',
    "missing header": 'op "*": replicate 4\n',
    "empty": "",
    "other version": "shardwright-plan 2\n" + ALL,
    "no number of devices": 'shardwright-plan 1\nop "*": replicate 4\n',
    "devices that are no number": "shardwright-plan 1\ndevices four\n",
    "devices that fill the memory": 'shardwright-plan 1\ndevices 4000000000\nuse "replicate"\n',
    "unknown named plan": HEADER + 'use "nonsense"\n',
    "order without a sign": ALL + "order %linear %linear_1\n",
    "order of unknown operators": ALL + "order %linear < %nope\n",
    "cyclic order": ALL + "order %linear_1 < %linear\n",
    "order with itself": ALL + "order %linear < %linear\n",
}


class Cumsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(self.linear(x), 1).square().sum()


@pytest.mark.parametrize("title", PLAN_FILES)
def test_a_plan_file(title: str, graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "mine.plan"
    path.write_text(PLAN_FILES[title])
    if "cumsum" in PLAN_FILES[title]:
        graph = Graph(capture(Cumsum(), (torch.randn(4, 4),)).graph_text)
    compile = sw._core.compile  # type: ignore[attr-defined]
    refused(f"plan file: {title}", lambda: compile(make_plan(graph, path, 4)), DIR=tmp_path)


def test_a_plan_file_that_cannot_be_read(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "binary.plan").write_bytes(b"\xff\xfe\0")
    for title, name in [("missing", "none.plan"), ("binary", "binary.plan"), ("a folder", "")]:
        path = str(tmp_path / name)
        refused(f"plan file: {title}", lambda path=path: make_plan(graph, path, 4), DIR=tmp_path)


class Tanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x).sum()


# ---- plans in Python ---------------------------------------------------------------------------

NAMES = [
    ("nonsense", 4), ("", 4), ("data:2 x megatron:3", 4), ("data:3", 4), ("data:0", 4), ("data:two", 4),
    ("data:65536 x data:65536", 4), ("coshard:3", 4), ("data", 16), ("data", 0), ("data", -1),
    ("replicate", 1 << 31),
]  # fmt: skip


@pytest.mark.parametrize(("name", "devices"), NAMES)
def test_a_named_plan(name: str, devices: int, graph: Graph) -> None:
    refused(f"named plan: {name!r} on {devices}", lambda: make_plan(graph, name, devices))


def test_megatron_finds_nothing() -> None:
    x = torch.randn(4, 4)
    refused("named plan: no megatron", lambda: compile_model(Tanh(), (x,), plan="megatron", devices=4))


def forgets(graph: Graph, draft: sw.Draft) -> None:
    for operator in graph.operators[1:]:
        draft.single(operator)
        draft.place(operator, [0])


def forgets_a_part(graph: Graph, draft: sw.Draft) -> None:
    for operator in graph.operators:
        for part in draft.trans(operator, "replicate", 4)[1:]:
            draft.assign(part, part.index)


def bad_device(graph: Graph, draft: sw.Draft) -> None:
    for operator in graph.operators:
        for part in draft.trans(operator, "replicate", 4):
            draft.assign(part, part.index + 1)


def negative_device(graph: Graph, draft: sw.Draft) -> None:
    draft.place(graph.operators[0], [-1])


def old_parts(graph: Graph, draft: sw.Draft) -> None:
    old = draft.trans(graph.operators[0], "replicate", 4)
    draft.single(graph.operators[0])
    draft.assign(old[3], 0)


def bad_dim(graph: Graph, draft: sw.Draft) -> None:
    draft.trans(graph.operators[0], "q", 4)


def cyclic(graph: Graph, draft: sw.Draft) -> None:
    for operator in graph.operators:
        draft.place(operator, [0]) if draft.single(operator) else None
    draft.order(graph.operators[-1], graph.operators[0])


def raises(graph: Graph, draft: sw.Draft) -> None:
    raise ValueError("no idea")


def returns_a_number(graph: Graph, draft: sw.Draft) -> int:
    return 3


def wants_nothing() -> None:
    pass


FUNCTIONS = [
    forgets, forgets_a_part, bad_device, negative_device, old_parts, bad_dim, cyclic, raises,
    returns_a_number, wants_nothing,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_plan_function(function: Callable[..., Any], graph: Graph) -> None:
    compile = sw._core.compile  # type: ignore[attr-defined]
    refused(f"plan function: {function.__name__}", lambda: compile(make_plan(graph, function, 4)))


def test_a_plan_for_something_else(graph: Graph, tmp_path: Path) -> None:
    plan = Plan.named(graph, "data", 2)
    refused("plan: other number of devices", lambda: make_plan(graph, plan, 4))
    refused("plan: no plan", lambda: make_plan(graph, 3, 4))  # type: ignore[arg-type]
    other = models.two_losses()
    refused("plan: other model", lambda: compile_model(*other, plan=plan, devices=2))


def test_a_plan_of_the_same_model_captured_again_fits() -> None:
    graph = Graph(capture(*models.gpt()).graph_text)
    plan = Plan.random(graph, 2, 1)
    assert compile_model(*models.gpt(), plan=plan, devices=2)[0].plan == plan.name
