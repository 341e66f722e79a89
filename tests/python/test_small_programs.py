"""Small models, each over a few operators that have been refused or wrong in parts, under named and random
plans beside the single device, float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture

torch.set_num_threads(1)

SEEDS = 12
NAMED = ["data", "megatron", "replicate"]
Forward = Callable[[Any, Tensor], Any]


class Small(nn.Module):
    """A projection `w` from 5 to 8, a vector `v` of 8, a buffer `seen` of 8, and a forward over them."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(numbers(5, 8)), nn.Parameter(numbers(8))
        self.register_buffer("seen", numbers(8))
        self.body = forward

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)


def numbers(*shape: int) -> Tensor:
    count = int(torch.tensor(shape).prod())
    return torch.arange(1, count + 1, dtype=torch.float64).mul(0.7).sin().reshape(shape)


def check(forward: Forward, batch: int = 4, seeds: int = SEEDS) -> None:
    module, args = Small(forward), (numbers(batch, 5),)
    captured = capture(module, args)
    graph = Graph(captured.graph_text)
    expected = equality.reference(module, args)
    plans = [Plan.named(graph, name, 2) for name in NAMED if fits(graph, name)]
    plans += [Plan.random(graph, 2 + seed % 3, seed) for seed in range(seeds)]
    for plan in plans:
        compiled = compile(plan)
        files = dict(compiled.files)
        bundle = Bundle(files, compiled.digest, plan.name, plan.devices, captured, "", "")
        equality.assert_equal(equality.run(bundle, module, args), expected, repr(plan))


def fits(graph: Graph, name: str) -> bool:
    """Whether the named plan finds something to split."""
    try:
        Plan.named(graph, name, 2)
    except Exception:
        return False
    return True


def loss(h: Tensor) -> Tensor:
    return h.square().mean()


UNUSED: dict[str, Forward] = {
    "a product of a hidden state with itself": lambda m, x: (loss(x @ m.w), (x @ m.w) @ (x @ m.w).t()),
    "a softmax of logits": lambda m, x: {"loss": loss(x @ m.w), "probs": (x @ m.w).softmax(-1)},
    "what shares a hidden state": lambda m, x: (lambda h: (loss(h), h @ h.t()))(x @ m.w),
    "what alone reads a parameter": lambda m, x: (loss(x @ m.w), x @ m.w * m.v),
}


@pytest.mark.parametrize("name", UNUSED)
def test_what_no_output_needs_is_not_in_the_program(name: str) -> None:
    check(UNUSED[name])


def test_an_output_that_nobody_asks_for_costs_nothing() -> None:
    both, alone = Small(lambda m, x: (loss(x @ m.w), x @ m.v[:5])), Small(lambda m, x: loss(x @ m.w))
    lines = []
    for module in (both, alone):
        graph = Graph(capture(module, (numbers(4, 5),)).graph_text)
        files = dict(compile(Plan.named(graph, "data", 2)).files)
        lines.append(sum(text.count(" = ") for name, text in files.items() if name.endswith(".py")))
    assert lines[0] == lines[1]
