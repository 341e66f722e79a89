"""The examples of every named plan run on some model, and compute what the single device does."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
import models
import shardwright as sw
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile, plan_devices, plan_examples
from shardwright.capture import Captured, capture
from shardwright.errors import ShardwrightError

torch.set_num_threads(1)

# `2bw` is beside its own definition (`test_2bw.py`): its updates are of older parameters.
EXAMPLES = [name for name in plan_examples() if "2bw" not in name]
BATCHES, STEPS = 2, 2


class Called(nn.Module):
    """Calls its layers twice, and learns in the second call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(models.MlpLayer(16, 32) for _ in range(2)))
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.inner(x)
        return F.mse_loss(self.head(self.inner(x + y)), target)


def called() -> models.Model:
    torch.manual_seed(0)
    return Called().double(), (torch.randn(8, 16).double(), torch.randn(8, 1).double())


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, 10, 6)), nn.Parameter(torch.randn(4, 6, 5))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        return (x + sw.experts(x, chosen, weights, self.up, self.down)).cos().mean()


def mixture() -> models.Model:
    torch.manual_seed(0)
    return Mixture().double(), (torch.randn(6, 3, 6).double(),)


MODELS = (models.gpt, models.resnet, called, mixture)


@functools.cache
def known(build: Any) -> tuple[Any, Any, Captured, Graph, equality.Result]:
    module, args = build()
    captured = capture(module, args)
    expected = equality.steps_reference(module, equality.micro_batches(args, BATCHES), STEPS)
    return module, args, captured, Graph(captured.graph_text), expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_a_plan_equals_the_single_device(name: str) -> None:
    refused = []
    for build in MODELS:
        module, args, captured, graph, expected = known(build)
        try:
            plan = Plan.named(graph, name, plan_devices(name) or 2)
        except ShardwrightError as error:
            refused.append(str(error))
            continue
        made = compile(plan)
        bundle = Bundle(dict(made.files), made.digest, plan.name, plan.devices, captured, made.proof, "")
        actual = equality.run_steps(bundle, module, equality.micro_batches(args, BATCHES), STEPS)
        return equality.assert_equal(actual, expected, plan.name)
    raise AssertionError("\n".join(["no model fits:", *refused]))
