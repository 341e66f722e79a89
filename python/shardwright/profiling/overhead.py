"""What a step takes besides its operators and messages: Python, autograd's engine, the ranks' agreement.

Two small models, one with more calls of local code than the other, under a plan that communicates between
calls: what their steps take beyond what the figures so far say is that of a step, and that of a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

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
# A call that takes so long shows how many of them a step waits for.
LONG = 1e-3

# The text of a cluster, given what a step and a call take.
Text = Callable[[float, float], str]


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


def plan_for(devices: int) -> str:
    return f"megatron:{devices}" if devices > 1 else "data:1 x recompute"


def measured(devices: int) -> list[float]:
    """The steps of both, without the optimizer's; all ranks call this."""
    models = []
    for depth in DEPTHS:
        module, batch = probe(depth)
        models.append(
            (parallelize(module, batch, plan=plan_for(devices), cache=False, progress=False), batch)
        )
    times: list[list[float]] = [[], []]
    for _ in range(STEPS):
        for (model, batch), found in zip(models, times, strict=True):
            start = time.perf_counter()
            model.train_step(batch)
            found.append(time.perf_counter() - start)
            model.zero_grad()
    return [low(found[3:]) for found in times]


def of_step_and_call(devices: int, steps: Sequence[float], text: Text) -> tuple[float, float]:
    """Seconds of a step and of a call, of the steps that were measured."""
    told = [_told(devices, depth, text) for depth in DEPTHS]
    (few, rest), (many, more) = (
        (calls, max(0.0, step - seconds)) for step, (seconds, calls) in zip(steps, told, strict=True)
    )
    call = max(0.0, (more - rest) / (many - few))
    return max(0.0, rest - few * call), call


def _told(devices: int, depth: int, text: Text) -> tuple[float, float]:
    """What the figures so far say of a probe's step, and how many calls it waits for."""
    module, batch = probe(depth)
    made = Plan.named(Graph(capture(module, batch).graph_text), plan_for(devices), devices)
    compiled = compile(made)

    def seconds(call: float) -> float:
        return simulate_step(made, compiled, "here", text(0.0, call), optimizer="none").seconds

    return seconds(0.0), (seconds(LONG) - seconds(0.0)) / LONG
