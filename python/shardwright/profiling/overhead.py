"""What a step takes besides its operators and messages: Python, autograd's engine, the ranks' agreement.

A small model and a deeper one, under a plan that communicates between calls of local code and under one that
does not: what their steps take beyond what the figures so far say is of the step, its calls, and its waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._core import Graph, Plan, compile, simulate_step
from ..api import parallelize
from ..capture import capture
from .clock import low

WIDTH, ROWS = 32, 16
# Layers of the two.
DEPTHS = (2, 12)
STEPS = 40
# A call that takes so long shows how many of them a step has one after the other.
LONG = 1e-3


@dataclass(frozen=True)
class Overhead:
    """Seconds: of a step, around a call or its backward, and until a rank goes on that has waited."""

    step: float = 0.0
    call: float = 0.0
    wake: float = 0.0


# The text of a cluster, given these.
Text = Callable[[Overhead], str]


class Probe(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(F.gelu(up(x)))
        return F.mse_loss(x, target)


def probe(depth: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Probe(depth), (torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH))


def plans_for(devices: int) -> list[str]:
    """One under which ranks call much and meet little, and one under which they meet between calls."""
    alone = f"data:{devices} x recompute"
    return [alone, f"megatron:{devices}"] if devices > 1 else [alone]


def measured(devices: int) -> list[float]:
    """The steps of all probes, without the optimizer's; all ranks call this."""
    models = []
    for plan, depth in _probes(devices):
        module, batch = probe(depth)
        models.append((parallelize(module, batch, plan=plan, cache=False, progress=False), batch))
    times: list[list[float]] = [[] for _ in models]
    for _ in range(STEPS):
        for (model, batch), found in zip(models, times, strict=True):
            start = time.perf_counter()
            model.train_step(batch)
            found.append(time.perf_counter() - start)
            model.zero_grad()
    return [low(found[3:]) for found in times]


def of_steps(devices: int, steps: Sequence[float], text: Text) -> Overhead:
    """What is left of the steps that were measured, by what they have more of."""
    told = [_told(devices, plan, depth, text) for plan, depth in _probes(devices)]
    left = [max(0.0, step - it.seconds) for step, it in zip(steps, told, strict=True)]
    call = max(0.0, (left[1] - left[0]) / (told[1].calls - told[0].calls))
    wake = 0.0
    if len(told) > 2:
        more = left[3] - left[2] - call * (told[3].calls - told[2].calls)
        wake = max(0.0, more / (told[3].waits - told[2].waits))
    return Overhead(max(0.0, left[0] - call * told[0].calls - wake * told[0].waits), call, wake)


@dataclass(frozen=True)
class _Told:
    """What the figures so far say of a probe's step, and how many calls and waits it has one by one."""

    seconds: float
    calls: float
    waits: float


def _probes(devices: int) -> list[tuple[str, int]]:
    return [(plan, depth) for plan in plans_for(devices) for depth in DEPTHS]


def _told(devices: int, plan: str, depth: int, text: Text) -> _Told:
    module, batch = probe(depth)
    made = Plan.named(Graph(capture(module, batch).graph_text), plan, devices)
    compiled = compile(made)

    def seconds(call: float = 0.0, wake: float = 0.0) -> float:
        given = text(Overhead(0.0, call, wake))
        return simulate_step(made, compiled, "here", given, optimizer="none").seconds

    plain = seconds()
    return _Told(plain, (seconds(call=LONG) - plain) / LONG, (seconds(wake=LONG) - plain) / LONG)
