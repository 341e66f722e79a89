"""What a step takes besides its operators and messages: Python, autograd's engine, the ranks' agreement.

A small model and a deeper one, under a plan that communicates between calls of local code and under one that
does not: what their steps take beyond what the figures so far say is of the step, its calls, and its waits.
And one with real work: what its step takes longer than all that is by how much operators and messages are
slower in a step than by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._core import Graph, Plan, compile, simulate_step
from ..api import parallelize
from ..capture import capture
from ..report.memory import OPTIMIZER
from ..runtime.communication.comm import Comm
from ..runtime.execution.calls import call_in_halves, call_saving, match
from ..runtime.execution.split_backward import first_half
from ..runtime.optimizers.optimizer import optimizer
from .clock import Work, low

# Width and rows of the small ones, and of that with real work.
SMALL, LARGE = (32, 16), (512, 256)
# Layers of a call whose backward has two halves.
HALVED = 24
# Layers of the two, and of the other one.
DEPTHS, LAYERS = (2, 12), 6
# Rounds that are measured, and before these.
STEPS, LONG_STEPS, WARM = 37, 10, 3
# More would be a mistake of what was measured.
MOST = 2.0
# A call that takes so long shows how many of them a step has one after the other.
LONG = 1e-3


@dataclass(frozen=True)
class Overhead:
    """Seconds: of a step, around a call or its backward, and until a rank goes on that has waited. And how
    many times as long operators and messages take in a step."""

    step: float = 0.0
    call: float = 0.0
    wake: float = 0.0
    slower: float = 1.0


# The text of a cluster, given these.
Text = Callable[[Overhead], str]


class Probe(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(F.gelu(up(x)))
        return F.mse_loss(x, target)


def probe(depth: int, size: tuple[int, int] = SMALL) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    width, rows = size
    return Probe(depth, width), (torch.randn(rows, width), torch.randn(rows, width))


def plans_for(devices: int) -> list[str]:
    """One under which ranks call much and meet little, and one under which they meet between calls."""
    alone = f"data:{devices} x recompute"
    return [alone, f"megatron:{devices}"] if devices > 1 else [alone]


def measured(comm: Comm) -> list[float]:
    """The steps of all probes, without the optimizer's, and that of the large one, with it; all ranks call
    this. On a GPU that one would say how quickly it is given work: none is measured."""
    steps: list[tuple[Work, Work]] = []
    for plan, depth in _probes(comm.world):
        module, batch = probe(depth)
        model = parallelize(module, batch, plan=plan, cache=False, progress=False)
        steps.append((partial(model.train_step, batch), model.zero_grad))
    return [*_in_turn(steps, STEPS), _large(comm.world) if comm.device.type == "cpu" else 0.0]


def _in_turn(ways: Sequence[tuple[Work, Work]], rounds: int) -> list[float]:
    """The lower quartile of what each takes, but for what comes after it."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(WARM + rounds):
        for (way, after), seconds in zip(ways, times, strict=True):
            start = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - start)
            after()
    return [low(seconds[WARM:]) for seconds in times]


def _large(devices: int) -> float:
    module, batch = probe(LAYERS, LARGE)
    model = parallelize(module, batch, plan=f"data:{devices}", cache=False, progress=False)
    adam = optimizer(model, torch.optim.AdamW, lr=1e-4)

    def step() -> None:
        model.train_step(batch)
        adam.step()
        adam.zero_grad()

    return _in_turn([(step, _nothing)], LONG_STEPS)[0]


def _nothing() -> None:
    return None


def of_steps(devices: int, steps: Sequence[float], text: Text) -> Overhead:
    """What is left of the steps that were measured, by what they have more of."""
    *small, large = steps
    estimates = [_estimate(devices, plan, depth, text) for plan, depth in _probes(devices)]
    left = [max(0.0, step - it.seconds) for step, it in zip(small, estimates, strict=True)]
    call = max(0.0, (left[1] - left[0]) / (estimates[1].calls - estimates[0].calls))
    wake = 0.0
    if len(estimates) > 2:
        more = left[3] - left[2] - call * (estimates[3].calls - estimates[2].calls)
        wake = max(0.0, more / (estimates[3].waits - estimates[2].waits))
    step = max(0.0, left[0] - estimates[0].besides(Overhead(call=call, wake=wake)))
    overhead = Overhead(step, call, wake)
    return replace(overhead, slower=_slower(devices, large - overhead.step, overhead, text))


def _slower(devices: int, step: float, besides: Overhead, text: Text) -> float:
    estimate = _estimate(devices, f"data:{devices}", LAYERS, text, LARGE, OPTIMIZER)
    return min(MOST, max(1.0, (step - estimate.besides(besides)) / estimate.seconds))


def apart() -> float:
    """Seconds that an operator takes more if the gradients of its parameters come in a half of their own."""
    width, rows = SMALL
    weights = [torch.randn(width, width).requires_grad_() for _ in range(HALVED)]
    leaves = {id(weight) for weight in weights}
    given, grad = torch.randn(rows, width).requires_grad_(), torch.ones(rows, width)

    def model(x: Tensor) -> Tensor:
        # As many operators for each product as layers of transformers have.
        for weight in weights:
            heads = F.linear(x, weight).view(rows, 2, -1).transpose(0, 1)
            x = x + (heads * heads.sigmoid()).transpose(0, 1).reshape(rows, width)
        return x

    def whole() -> None:
        _, saved = call_saving(model, (given,), leaves, None)
        torch.autograd.backward(*match(saved, [grad]))

    def halves() -> None:
        _, saved = call_in_halves(model, (given,), leaves, None)
        assert saved.boxes is not None
        first_half(saved.entries, *match(saved, [grad]), saved.boxes)[1].backward()

    together, one_by_one = _in_turn([(whole, _nothing), (halves, _nothing)], STEPS)
    return max(0.0, one_by_one - together) / HALVED


@dataclass(frozen=True)
class _Estimate:
    """What the figures so far say of a probe's step, and how many calls and waits it has one by one."""

    seconds: float
    calls: float
    waits: float

    def besides(self, it: Overhead) -> float:
        """What it takes more, but for what each step does."""
        return it.call * self.calls + it.wake * self.waits


def _probes(devices: int) -> list[tuple[str, int]]:
    return [(plan, depth) for plan in plans_for(devices) for depth in DEPTHS]


def _estimate(
    devices: int,
    plan: str,
    depth: int,
    text: Text,
    size: tuple[int, int] = SMALL,
    updated_by: str = "none",
) -> _Estimate:
    module, batch = probe(depth, size)
    made = Plan.named(Graph(capture(module, batch).graph_text), plan, devices)
    compiled = compile(made)

    def seconds(call: float = 0.0, wake: float = 0.0) -> float:
        given = text(Overhead(0.0, call, wake))
        return simulate_step(made, compiled, "here", given, optimizer=updated_by).seconds

    plain = seconds()
    return _Estimate(plain, (seconds(call=LONG) - plain) / LONG, (seconds(wake=LONG) - plain) / LONG)
