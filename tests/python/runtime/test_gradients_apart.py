"""Gradients that autograd gives as views of one memory are added to by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import equality
import shardwright as sw
from fuzz.steps import on_ranks, single_device
from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture
from shardwright.runtime import run_local
from shardwright.start.compiling import Bundle

BATCHES = [(torch.full((2,), float(at), dtype=torch.float64),) for at in range(3)]


def parameter(*size: int) -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 1, torch.Size(size).numel(), dtype=torch.float64).reshape(size))


class SumOfOne(nn.Module):
    """The gradient of each part of `p` is what arrives, in the memory in which it arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.p = parameter(2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.p.sum(0, keepdim=True) + x.mean()).pow(2).mean()


class ReadTwice(nn.Module):
    """What arrives for `p` by one way is what others are given behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = parameter(2), parameter(2)

    def forward(self, x: Tensor) -> Tensor:
        return ((self.p + self.q) * (self.p + x)).sum()


class Sign(nn.Module):
    """The gradient of a sign is zeros without memory, to which PyTorch itself cannot add."""

    def __init__(self) -> None:
        super().__init__()
        self.p = parameter(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.p.sgn().sum(1) * x).sum() + self.p.square().sum()


PLANS = {
    "two parts on one device": (SumOfOne, {0: "split a 2 on 0 0"}),
    "two copies on one device": (ReadTwice, {0: "replicate 2 on 0 0"}),
    "halves on one device": (ReadTwice, {0: "split a 2 on 0 0", 1: "split a 2 on 0 0"}),
    "zeros that are added to": (Sign, {0: "split a 2 on 0 0", 3: "split a 2 on 0 0"}),
}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", PLANS)
def test_micro_batches_add_up_as_on_the_single_device(name: str, count: int) -> None:
    kind, divided = PLANS[name]
    captured = capture(kind(), BATCHES[0])
    graph = Graph(captured.graph_text)
    operators = [line.split()[1] for line in captured.graph_text.splitlines() if line.startswith("op ")]
    lines = [f"op {operator}: {divided.get(at, 'single on 0')}" for at, operator in enumerate(operators)]
    plan = Plan.parse(graph, "\n".join(['shardwright-plan 1\nname "mine"\ndevices 1', *lines, ""]))
    made = compile(plan, "loss")
    bundle = Bundle(dict(made.files), made.digest, plan.name, plan.devices, captured, "", "")
    actual = on_ranks(kind(), bundle, BATCHES[:count], 3, False)
    assert equality.differences(actual, single_device(kind(), BATCHES[:count], 3)) == []


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = parameter(2, 2), parameter(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return ((self.p.view(-1) + self.q.view(-1)) * x).sum()


def test_two_parameters_that_are_added_have_gradients_of_their_own() -> None:
    """PyTorch by itself adds to both where something is added to one."""
    x = (torch.arange(4, dtype=torch.float64),)

    def gradients(rank: int) -> list[Tensor]:
        model = sw.parallelize(Added(), x, plan="replicate", devices=1, cache=False)
        model(*x).backward()
        model(*x).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for actual in run_local(1, lambda rank, comm: gradients(rank)):
        assert [grad.flatten().tolist() for grad in actual] == [[0.0, 2.0, 4.0, 6.0]] * 2
