"""Models without layers: what `recompute` and `offload` mean there is segments of their operators."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import equality
import live
import shardwright as sw
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture

torch.set_num_threads(1)

Made = tuple[nn.Module, tuple[Any, ...]]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Loss(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


def row() -> Made:
    """Convolutions in a row: modules of a list that do the same, and keep no less than they read."""
    torch.manual_seed(0)
    channels = [2, 4, 6, 4, 8, 6, 4, 2, 4, 6]
    parts: list[nn.Module] = []
    for at, (inner, outer) in enumerate(itertools.pairwise(channels)):
        activation: nn.Module = nn.GELU() if at % 2 else nn.Tanh()
        parts += [nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), activation]
    parts += [nn.Flatten(), nn.Linear(6 * 64, 3), Loss()]
    return nn.Sequential(*parts).double(), (normal(6, 2, 8, 8),)


class UNet(nn.Module):
    """Two levels down and up, with the values of the way down read on the way up; masks are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.bottom = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 1, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        first = functional.gelu(self.first(x))
        down = functional.gelu(self.down(first))
        bottom = functional.gelu(self.bottom(down)) + down
        with torch.no_grad():
            self.seen.mul_(0.5).add_(bottom.mean())
        up = functional.gelu(self.up(bottom))
        last = functional.gelu(self.last(torch.cat([first, up], 1)))
        return self.out(last).square().mean()


class Flat(nn.Module):
    """One function, with its parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = [8, 24, 16, 40, 8, 16, 24, 8]
        shapes = list(itertools.pairwise(widths))
        self.a, self.b, self.c, self.d, self.e, self.f, self.g = (
            nn.Parameter(normal(*shape) / shape[0] ** 0.5) for shape in shapes
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x @ self.a)
        y = torch.tanh(y @ self.b).square()
        y = torch.sigmoid(y @ self.c) * 2
        y = torch.tanh(y @ self.d) + x
        y = torch.sin(y @ self.e).exp()
        y = torch.tanh(y @ self.f)
        return (y @ self.g).square().mean()


def unet() -> Made:
    torch.manual_seed(0)
    return UNet().double(), (normal(6, 2, 8, 8),)


def flat() -> Made:
    torch.manual_seed(0)
    return Flat(), (normal(240, 8),)


MODELS: dict[str, Callable[[], Made]] = {"row": row, "unet": unet, "flat": flat}
NAMED = [
    ("recompute", 1),
    ("recompute:selective", 1),
    ("data x recompute", 2),
    ("data x recompute", 3),
    ("zero3 x recompute", 2),
    ("megatron x recompute", 2),
    ("data x offload:activations", 2),
    ("zero3 x recompute x offload:activations", 2),
]


@functools.cache
def model(name: str) -> tuple[nn.Module, tuple[Any, ...], Captured, Graph]:
    module, args = MODELS[name]()
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text)


def check(name: str, plan: Plan) -> Compiled:
    module, args, captured, _ = model(name)
    compiled = compile(plan)
    bundle = Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")
    actual = equality.run(bundle, module, args)
    equality.assert_equal(actual, equality.reference(module, args), f"{name}, {plan!r}")
    return compiled


def code(compiled: Compiled) -> str:
    return "".join(text for file, text in compiled.files.items() if file.endswith(".py"))


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), NAMED)
@pytest.mark.parametrize("name", MODELS)
def test_programs_equal_the_single_device(name: str, plan: str, devices: int) -> None:
    named_plan = Plan.named(model(name)[3], plan, devices)
    spans = named_plan.recompute or named_plan.offload
    assert spans and all(spans)
    again = code(check(name, named_plan))
    assert not named_plan.recompute or "recompute=True" in again or "forget=True" in again


@pytest.mark.parametrize("name", MODELS)
def test_pipelines_are_proved(name: str) -> None:
    """Of a segment over two stages each computes its own operators again."""
    plan = Plan.named(model(name)[3], "stages:2 x 1f1b x recompute", 2)
    assert all("recompute=True" in text for file, text in compile(plan).files.items() if "rank_0" in file)


@pytest.mark.parametrize("plan", ["replicate", "data:2", "zero3:2"])
@pytest.mark.parametrize("name", MODELS)
def test_less_is_there_at_a_time(name: str, plan: str) -> None:
    devices = 1 if plan == "replicate" else 2
    module, args, captured, graph = model(name)
    predicted, seen = [], []
    for each in (plan, f"{plan} x recompute"):
        compiled = compile(Plan.named(graph, each, devices))
        predicted.append(max(memory.total for memory in compiled.memory("none")))
        seen.append(live.peak(compiled, module, captured, lambda it: it(*args).sum().backward()))
    assert predicted[1] < predicted[0], predicted
    assert seen[1] <= seen[0], seen


def test_segments_are_apart_and_leave_the_last_operators_out() -> None:
    for name in MODELS:
        graph = model(name)[3]
        spans = Plan.named(graph, "recompute", 1).recompute
        names = [op.name for op in graph.operators]
        places = [names.index(op.name) for span in spans for op in span]
        assert places == list(range(len(places))), "they follow each other from the first operator on"
        assert len(places) < len(names), "backward comes to the last ones at once"


def test_a_plan_that_is_printed_is_the_plan() -> None:
    for name in MODELS:
        graph = model(name)[3]
        plan = Plan.named(graph, "data x recompute", 2)
        for text in (plan.text, plan.folded):
            assert Plan.parse(graph, text).text == plan.text
        assert "..%" in plan.text


def test_what_is_named_from_one_to_another_is_one_span() -> None:
    graph = model("flat")[3]
    text = 'shardwright-plan 1\nname "mine"\ndevices 2\nuse "data"\nrecompute %{}..%{}\n'
    first, last = graph.operators[0].name, graph.operators[5].name
    plan = Plan.parse(graph, text.format(first, last))
    assert [len(span) for span in plan.recompute] == [6]
    check("flat", plan)
    with pytest.raises(sw.ShardwrightError, match=rf"SW0301.*%{last}\.\.%{first} names no operators"):
        Plan.parse(graph, text.format(last, first))


def test_a_model_without_a_backward_is_refused() -> None:
    module, args = flat()
    graph = Graph(capture(module.requires_grad_(False), args).graph_text)
    with pytest.raises(sw.ShardwrightError, match=r"SW0309.*nothing that is saved for backward"):
        Plan.named(graph, "data x recompute", 2)
