"""How far apart two runs of a model may be that differ in nothing but the order of their additions.

Each operator rounds what it gives once, and each addition inside of it once more. Rounding errors of `n`
such steps are taken for independent, so that they add up as a random walk does, to `u * sqrt(n)` of what is
computed, with `u` the unit roundoff; that they go beyond `LAMBDA` times as far has a probability of
`2 exp(-LAMBDA ** 2 / 2)` (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019).
Steps are counted along the longest way through the graph: to an output forward, to a gradient there and back.
PyTorch adds 16-bit numbers up in float32.

That says nothing of how a model magnifies errors. Where there is a run in float64, how far the model itself
is from it says that too, and is taken: `LAMBDA` times that, but never less than a rounding for each operator,
nor more than all additions explain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from .._core import Graph
from .order import COARSE, Node, Order

LAMBDA = 6.0
# In float64 throughout: of a tensor's norm, or of a thousandth of a typical one of its kind.
FINE = 1e-9
_UNIT = {
    "f64": 2.0**-53,
    "f32": 2.0**-24,
    "bf16": 2.0**-8,
    "f16": 2.0**-11,
    "c64": 2.0**-24,
    "c128": 2.0**-53,
}
_ADDED_IN = {"bf16": "f32", "f16": "f32"}
SMALL = 1e-3


@dataclass(frozen=True)
class Spread:
    """Variances of relative errors: with one rounding for each operator, and for each addition too."""

    low: float = 0.0
    most: float = 0.0

    def then(self, other: Spread) -> Spread:
        return Spread(self.low + other.low, self.most + other.most)

    def limit(self, rounding: float | None) -> float:
        """As far as rounding goes, where the model is `rounding` away from float64, if that is known."""
        low, most = sqrt(self.low), sqrt(self.most)
        return LAMBDA * (most if rounding is None else min(max(rounding, low), most))


class Spreads:
    """Of every tensor of a graph, and of its gradients. `parts` are added up besides: of ranks, and of
    micro-batches."""

    def __init__(self, graph: Graph, order: Order, parts: int):
        flops = {operator.name: operator.cost.flops for operator in graph.operators}
        self._order, self._parts = order, parts
        self._forward = self._of_forward(flops)
        self._end = _widest([self._forward.get(name or "", Spread()) for name in order.outputs])
        self._backward = self._of_backward(flops)

    @property
    def is_fine(self) -> bool:
        """Whether all is computed in float64."""
        return not any(made.dtype in COARSE for made in self._order.typed.values())

    def of_value(self, name: str) -> Spread:
        return self._forward.get(name, Spread())

    def of_loss(self) -> Spread:
        return self._end

    def of_gradient(self, name: str) -> Spread:
        """Of a parameter, by its name in the model."""
        return self._end.then(self._backward.get(self._order.in_graph.get(name, ""), Spread()))

    def of_update(self, name: str) -> Spread:
        """Of what a buffer becomes."""
        return self.of_value(self._order.updates.get(name, ""))

    def _of_forward(self, flops: Mapping[str, int]) -> dict[str, Spread]:
        spreads: dict[str, Spread] = {}
        for node in self._order.nodes:
            before = _widest([spreads.get(name, Spread()) for name in node.reads])
            for made in node.results:
                spreads[made.name] = before.then(self._of_step(node, flops, made.dtype, made.numel))
        return spreads

    def _of_backward(self, flops: Mapping[str, int]) -> dict[str, Spread]:
        spreads: dict[str, Spread] = {}
        for node in reversed(self._order.nodes):
            after = _widest([spreads.get(made.name, Spread()) for made in node.results])
            for name in node.reads:
                read = self._order.typed[name]
                if read.dtype in _UNIT:
                    step = after.then(self._of_step(node, flops, read.dtype, read.numel))
                    spreads[name] = _widest([spreads.get(name, Spread()), step])
        return spreads

    def _of_step(self, node: Node, flops: Mapping[str, int], dtype: str, numel: int) -> Spread:
        """Of an operator, or of its backward, that gives so many elements."""
        if dtype not in _UNIT:
            return Spread()
        added = max(1.0, flops.get(node.results[0].name, 0) / max(1, numel)) + self._parts
        once = _UNIT[dtype] ** 2
        return Spread(once, once + added * _UNIT[_ADDED_IN.get(dtype, dtype)] ** 2)


def unit_of(dtype: str) -> float:
    return _UNIT.get(dtype, 0.0)


def _widest(spreads: list[Spread]) -> Spread:
    return Spread(max((s.low for s in spreads), default=0.0), max((s.most for s in spreads), default=0.0))
