"""The bubble of each schedule, beside its formula and PyTorch's own: stages that sleep instead of computing.

So four ranks do not need four cores. A forward has one product for each layer, its backward two: the gradient
of what was given, and that of the weight. Each product sleeps for the same time, on both sides.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from measure import assert_close, interleaved, pin, ratio
from tables import Table, ratio_of, time_of
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

import shardwright as sw

STAGES, LAYERS = 4, 8
ROWS, WIDTH = 8, 16
# Of a product of all rows.
SLEEP = 0.01
AIM = 1.0
# Of blocks that do nothing.
MANY = 64


@dataclass(frozen=True)
class Kind:
    plan: str
    # A rank waits so many times, and works so many for each micro-batch: those of a stage, a block, a third.
    waits: float
    works: float
    # PyTorch's own, and how many stages it has on each rank.
    theirs: str = ""
    stages: int = 1

    def bubble(self, batches: int) -> float:
        return self.waits / (self.works * batches + self.waits)


P = STAGES - 1
KINDS = [
    Kind("stages:4", P, 1, "Schedule1F1B"),
    Kind("stages:4 x gpipe", P, 1, "ScheduleGPipe"),
    Kind("stages:4 x interleaved:2", P, 2, "ScheduleInterleaved1F1B", 2),
    Kind("stages:4 x zb-h1", P, 3, "ScheduleInterleavedZeroBubble"),
    Kind("stages:4 x zb-v", P + STAGES / 2, 6, "ScheduleZBVZeroBubble", 2),
    # A third of a turn is a forward; backwards go on over the ends of steps.
    Kind("stages:4 x 2bw", P, 3),
    Kind("stages:4 x bidirectional", STAGES / 2 - 1, 1),
]


class Chain(nn.Module):
    """Layers one after the other. What is added first makes the gradient of all products' inputs needed."""

    def __init__(self, layers: int):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.shift
        for layer in self.layers:
            x = layer(x)
        return loss_of(x, y)


class Slice(nn.Module):
    """A stage of it for PyTorch."""

    def __init__(self, whole: Chain, layers: slice):
        super().__init__()
        self.layers = whole.layers[layers]
        if layers.start == 0:
            self.shift = whole.shift

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.shift if hasattr(self, "shift") else x
        for layer in self.layers:
            x = layer(x)
        return x


def loss_of(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().mean()


class Products:
    """While it sleeps, each product takes its share of the time that one of all rows does; and says when."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self._sleeps = False
        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("mm", self._product, "CPU")

    @contextmanager
    def sleeping(self) -> Iterator[None]:
        self.spans, self._sleeps = [], True
        yield
        self._sleeps = False

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        start = time.perf_counter()
        product = torch.mm(a, b, out=a.new_empty(a.shape[0], b.shape[1]))
        if self._sleeps:
            time.sleep(SLEEP * a.numel() * b.shape[1] / (ROWS * WIDTH * WIDTH))
            self.spans.append((start, time.perf_counter()))
        return product


@dataclass
class Side:
    """What one of both does in a step. The loss is there on the ranks that have it."""

    step: Callable[[], Tensor | None]
    parameters: list[Tensor]
    # Of each measured step: the whole call, when the first product began (negative), when the last one ended,
    # how long all took, and how many they were.
    notes_of_steps: list[list[float]] = field(default_factory=list)

    def forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def trained(self) -> float:
        """The loss of a step, on all ranks, after which the parameters are others."""
        self.forget()
        loss = self.step()
        both = torch.zeros(2) if loss is None else torch.stack([loss.detach(), torch.ones(())])
        dist.all_reduce(both)
        with torch.no_grad():
            for parameter in self.parameters:
                assert parameter.grad is not None
                parameter -= parameter.grad
        return (both[0] / both[1]).item()

    def measured(self, products: Products) -> float:
        self.forget()
        dist.barrier()
        start = time.perf_counter()
        with products.sleeping():
            self.step()
        taken, spans = time.perf_counter() - start, products.spans
        busy = sum(end - begin for begin, end in spans)
        self.notes_of_steps.append([taken, -spans[0][0], spans[-1][1], busy, len(spans)])
        return taken


def bench(quick: bool) -> Table:
    pairs, counts = (2, [4]) if quick else (5, [4, 8, 16])
    results = sw.launch(measure_all, devices=STAGES, args=(pairs, counts), timeout=1200)
    pinned, empty = sw.launch(measure_empty, devices=2, args=(10 if quick else 40,), timeout=600)
    table = Table(
        "bubbles",
        "Pipelines: bubbles",
        f"{LAYERS} layers on {STAGES} ranks, processes with Gloo between them. Each product sleeps for"
        f" {time_of(SLEEP)}, so that no cores are needed: one of forward, two of backward for each layer."
        " A bubble is a share of the time between the first product of a step and the last one: that in"
        " which ranks have none, over all ranks. A step is the whole call, on the slowest rank."
        f" {pairs} interleaved pairs of steps, medians; the aim is at most {AIM}x.",
        ["", "micro-batches", "formula", "bubble", "PyTorch's", "step", "PyTorch's", "ratio [95%]"],
    )
    for result in results:
        table.add(*_row(result))
    table.notes.append(_about(empty, pinned))
    worst = max(result["worst"] for result in results if "theirs" in result)
    table.notes.append(f"Largest relative difference of the losses: {worst:.1e}.")
    table.values = {"results": results, "empty": empty, "pinned": pinned}
    return table


def _row(result: dict[str, Any]) -> list[str]:
    theirs = result["own"]
    name = f"`{result['plan']}` against `{theirs}`" if theirs else f"`{result['plan']}`"
    both = [result[side] for side in ("ours", "theirs") if side in result]
    bubbles = [f"{statistics.median(side['bubbles']):.1%}" for side in both]
    steps = [time_of(statistics.median(side["steps"])) for side in both]
    last = ratio_of(ratio(*(side["steps"] for side in both))) if theirs else ""
    filled = [""] * (2 - len(both))
    formula = f"{result['formula']:.1%}"
    return [name, str(result["batches"]), formula, *bubbles, *filled, *steps, *filled, last]


def _about(empty: dict[str, Any], pinned: bool) -> str:
    ours, theirs = (statistics.median(empty[side]) / (2 * MANY) * 1e6 for side in ("ours", "theirs"))
    return (
        f"Of layers that do not sleep, two stages on two ranks, {'each' if pinned else 'NOT'} pinned to its"
        f" core, {MANY} micro-batches under 1F1B: {ours:.0f} us for each forward or backward, PyTorch's"
        f" {theirs:.0f} us, {ratio_of(ratio(empty['ours'], empty['theirs']))}."
    )


# ---- on each rank ------------------------------------------------------------------------------


def measure_all(rank: int, pairs: int, counts: Sequence[int]) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    model, products = chain(LAYERS), Products()
    results = []
    for kind in KINDS:
        ours = sw.parallelize(copy.deepcopy(model), example(0), plan=kind.plan, cache=False, progress=False)
        for count in counts:
            results.append(compare(kind, model, ours, rank, count, pairs, products))
    return results


def compare(
    kind: Kind, model: Chain, ours: sw.ParallelModule, rank: int, count: int, pairs: int, products: Products
) -> dict[str, Any]:
    mine = emitted(ours, count)
    result = {"plan": kind.plan, "own": kind.theirs, "batches": count, "formula": kind.bubble(count)}
    if not kind.theirs:
        mine.step()
        interleaved(lambda: mine.measured(products), lambda: 0.0, pairs)
        return result | {"ours": _found(mine, count)}
    theirs = pytorchs(kind, model, rank, count)
    given = [shard.detach().clone() for shard in mine.parameters]
    both = [[side.trained() for _ in range(2)] for side in (mine, theirs)]
    worst = assert_close(f"{kind.plan}, {count}", *both, 1e-5)
    with torch.no_grad():
        for shard, value in zip(mine.parameters, given, strict=True):
            shard.copy_(value)
    interleaved(lambda: mine.measured(products), lambda: theirs.measured(products), pairs)
    return result | {"ours": _found(mine, count), "theirs": _found(theirs, count), "worst": worst}


def _found(side: Side, count: int) -> dict[str, list[float]]:
    """Of all ranks: a step's time and bubble. Each rank has as many products as there are for it."""
    times = torch.tensor(side.notes_of_steps, dtype=torch.float64)
    most, least, sums = times.clone(), times.clone(), times.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(sums)
    products = (least[:, 4] / most[:, 4]).tolist()
    assert set(products) == {1.0} and most[0, 4] % (3 * count) == 0, (products, most[0, 4])
    spans = most[:, 1] + most[:, 2]
    bubbles = 1 - sums[:, 3] / (STAGES * spans)
    return {"steps": most[:, 0].tolist(), "bubbles": bubbles.tolist()}


def measure_empty(rank: int, pairs: int) -> tuple[bool, dict[str, list[float]]]:
    """Two stages that hardly do anything."""
    torch.set_num_threads(1)
    model = chain(2)
    kind = Kind("stages:2", 1, 1, "Schedule1F1B")
    made = sw.parallelize(copy.deepcopy(model), example(0), plan=kind.plan, cache=False, progress=False)
    ours, theirs = emitted(made, MANY), pytorchs(kind, model, rank, MANY)
    assert_close("empty", *([side.trained()] for side in (ours, theirs)), 1e-5)
    pinned = pin(rank)
    sides = interleaved(lambda: _taken(ours), lambda: _taken(theirs), pairs)
    times = torch.tensor(sides, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return pinned, dict(zip(["ours", "theirs"], times.tolist(), strict=True))


def _taken(side: Side) -> float:
    side.forget()
    dist.barrier()
    start = time.perf_counter()
    side.step()
    return time.perf_counter() - start


def chain(layers: int) -> Chain:
    torch.manual_seed(0)
    return Chain(layers)


def example(seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, WIDTH, generator=made), torch.randn(ROWS, WIDTH, generator=made)


def emitted(made: sw.ParallelModule, count: int) -> Side:
    batches = [example(batch) for batch in range(count)]
    return Side(lambda: made.train_step(batches), list(made.parameters()))


def pytorchs(kind: Kind, model: Chain, rank: int, count: int) -> Side:
    """The same layers in each stage, as its documentation has it."""
    whole, number = copy.deepcopy(model), dist.get_world_size() * kind.stages
    # Under a zero-bubble V the last stage is on the rank of the first.
    in_turns = list(range(rank, number, dist.get_world_size()))
    stage_numbers = [rank, number - 1 - rank] if "ZBV" in kind.theirs else in_turns
    each = len(whole.layers) // number
    cut = [Slice(whole, slice(at * each, (at + 1) * each)) for at in stage_numbers]
    stages = [
        PipelineStage(it, at, number, torch.device("cpu")) for it, at in zip(cut, stage_numbers, strict=True)
    ]
    make = getattr(schedules, kind.theirs)
    alone = issubclass(make, schedules.PipelineScheduleSingle)
    schedule = make(stages[0] if alone else stages, count, loss_fn=loss_of)
    xs, ys = zip(*map(example, range(count)), strict=True)
    given = {"arg_mbs": [(x,) for x in xs]} if 0 in stage_numbers else {}
    wanted = {"target_mbs": list(ys)} if number - 1 in stage_numbers else {}

    def step() -> Tensor | None:
        losses: list[Tensor] = []
        schedule.step(**given, **wanted, losses=losses if wanted else None, return_outputs=False)
        return torch.stack(losses).detach().mean() if losses else None

    return Side(step, [parameter for it in cut for parameter in it.parameters()])
