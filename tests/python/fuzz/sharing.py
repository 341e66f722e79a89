"""Random plans in which parts hold shares, and whoever reads these is given shares of every kind.

A random plan divides few operators by value: what passes shares on would hardly be met.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from shardwright import Graph, Plan
from shardwright.errors import PlanError

from . import crossing

MAKES = 0.8
"""How often an operator that can make shares is divided so that it does."""
READS = ["value"] * 6 + ["single", "single", "replicate", "as it was"]
"""How operators that read shares are divided."""


def plan(graph: Graph, devices: int, seed: int) -> Plan:
    """A random plan, other decisions of which are taken where shares are made and read."""
    rng = random.Random(f"shares {seed}")
    drawn = Plan.random(graph, devices, seed)
    for name, decision in _decisions(graph, drawn, devices, rng):
        drawn = _decided(graph, drawn, name, decision)
    return drawn


def _decisions(graph: Graph, drawn: Plan, devices: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    operators = {op.name: op for op in graph.operators}
    shared: set[str] = set()
    for results, operands in crossing.lines(graph.text):
        op = operators.get(results[0])
        if op is None:
            continue
        marks, clauses = crossing.marks(op.rule or "")
        reads = shared.intersection(operands)
        makes = rng.choice(sorted(marks)) if marks and rng.random() < MAKES else ""
        passes = rng.choice(READS) if reads else ""
        splits = [f"{dim} 2" for dim in (makes, "value" if passes == "value" else "") if dim]
        if splits:
            on = " ".join(str(rng.randrange(devices)) for _ in range(2 ** len(splits)))
            yield op.name, f"split {', split '.join(splits)} on {on}"
        elif passes == "single":
            yield op.name, f"single on {rng.randrange(devices)}"
        elif passes == "replicate":
            yield op.name, f"replicate {devices}"
        if makes or (passes == "value" and clauses):
            shared.update(results)


def _decided(graph: Graph, drawn: Plan, name: str, decision: str) -> Plan:
    """With this decision for an operator; without it, if it is not legal there."""
    lines = [
        f"op %{name}: {decision}" if line.startswith(f"op %{name}:") else line
        for line in drawn.text.splitlines()
    ]
    try:
        return Plan.parse(graph, "\n".join(lines) + "\n")
    except PlanError:
        return drawn
