"""Pairs and triples of what was met: each feature alone says little of how they go together.

- A kind of share, who reads it, and how that operator is divided.
- An instruction, the pass that it is in, and where parameters live.
- A schedule, how what crosses its blocks is put together, and the dtype of that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from shardwright import Graph, Plan
from shardwright._core import Compiled
from shardwright.runtime import load_program

KINDS = {"+": "sum", ">": "max", "<": "min", "|": "any", "&": "all"}
READ = ("by value", "divided", "copied", "whole")
PASSING = {
    "linear": ("sum",),
    "rising": ("max", "min", "any", "all"),
    "falling": ("max", "min", "any", "all"),
}
LIVES = ("zero1", "zero2", "zero3")
SCHEDULES = ("1f1b", "gpipe", "zb-h1", "zb-v", "interleaved")
_DEF, _CALL = re.compile(r"^def (\w+)\("), re.compile(r"\brun\.(\w+)\(")
_MARKED = re.compile(r"\b([a-z]\w*)([+><|&])")
_OP = re.compile(r"^op (.*?) = ([\w.]+)\((.*)\) in ")

Decisions = Mapping[str, Sequence[tuple[str, int]]]


def wanted() -> list[str]:
    """Every pair that must not be zero after a long run."""
    shares = [f"share of {kind} read {how}" for kind in KINDS.values() for how in READ]
    moved = [f"{kind} crosses" for kind in ("one piece", "several pieces", "shares")]
    kept = [
        *("gather in forward, zero3", "gather in backward, zero3", "release in forward, zero3"),
        *("gather in begin, zero1", "gather in begin, zero2", "scatter_gradients in backward, zero2"),
        *("scatter_gradients in backward, zero3", "scatter_gradients in backward, zero1"),
    ]
    run = [
        f"{instruction} in {place}, held whole"
        for instruction in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange")
        for place in ("forward", "backward")
    ]
    crossed = [f"{schedule}: f64 crosses" for schedule in SCHEDULES]
    return [f"pair {name}" for name in [*shares, *moved, *kept, *run, *crossed]]


def missing(counts: Counter[str]) -> list[str]:
    """What was never met, and which families have a rule by which shares pass, and were given none."""
    able = {
        name.removeprefix("able ") for name, count in counts.items() if name.startswith("able ") and count
    }
    passed = sorted(f"pair {name}" for name in able)
    return [name for name in [*wanted(), *passed] if not counts[name]]


def of_pair(
    plan: Plan, graph: Graph, schedule: str, compiled: Compiled, families: Mapping[str, str]
) -> Counter[str]:
    seen: Counter[str] = Counter()
    seen.update(_shares(plan, graph, families))
    homes = next((home for home in LIVES if home in schedule), "held whole")
    for name, text in compiled.files.items():
        if name.endswith(".py"):
            seen.update(f"pair {run} in {place}, {homes}" for place, run in _instructions(text))
    seen.update(_crossings(schedule, compiled))
    return seen


def _shares(plan: Plan, graph: Graph, families: Mapping[str, str]) -> Iterator[str]:
    """Of operators that the plan divides: what shares they make, and how their readers are divided."""
    operators = {op.name: op for op in graph.operators}
    decided: dict[str, Sequence[tuple[str, int]]] = {op.name: splits for op, splits, _ in plan.decisions}
    made: dict[str, str] = {}
    for results, operands in lines(graph.text):
        op = operators.get(results[0])
        if op is None:
            continue
        splits, family = decided.get(op.name, ()), families.get(op.target, "other")
        makes_of, clauses = marks(op.rule or "")
        for through in clauses:
            yield from (f"able share of {kind} passed by {family}" for kind in PASSING[through])
        read = {made[name] for name in operands if name in made}
        for kind in read:
            how = _how(splits)
            yield f"pair share of {kind} read {how}"
            if how == "by value":
                yield f"pair share of {kind} passed by {family}"
        makes = {makes_of[dim] for dim, _ in splits if dim in makes_of}
        if any(dim == "value" for dim, _ in splits):
            makes |= {_passed(kind, clauses) for kind in read}
        for kind in makes:
            made |= dict.fromkeys(results, kind)


def _passed(kind: str, clauses: Sequence[str]) -> str:
    opposite = {"max": "min", "min": "max", "any": "all", "all": "any"}
    turned = "falling" in clauses and "rising" not in clauses
    return opposite.get(kind, kind) if turned else kind


def _how(splits: Sequence[tuple[str, int]]) -> str:
    dims = [dim for dim, _ in splits]
    if not dims:
        return "whole"
    return "by value" if "value" in dims else "copied" if set(dims) == {"replicate"} else "divided"


@cache
def marks(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The dims that make shares, with the kind of these; and the words of clauses by which shares pass."""
    operands, *clauses = text.split(";")
    kinds = {name: KINDS[mark] for name, mark in _MARKED.findall(operands.partition("->")[0])}
    words = (clause.split()[0] for clause in clauses if clause.split())
    return kinds, tuple(word for word in words if word in PASSING)


@cache
def lines(text: str) -> tuple[tuple[list[str], list[str]], ...]:
    """Of each operator the names of its results and of its operands."""
    pairs = []
    for line in text.splitlines():
        if match := _OP.match(line):
            names = [re.findall(r"%(\w+)", part) for part in (match[1], match[3])]
            if names[0]:
                pairs.append((names[0], names[1]))
    return tuple(pairs)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """The pass and the name of each instruction of a role."""
    place = ""
    for line in text.splitlines():
        if match := _DEF.match(line):
            place = next((way for way in ("backward", "forward", "begin", "finish") if way in match[1]), "")
        elif place:
            for name in _CALL.findall(line):
                yield place, name


def _crossings(schedule: str, compiled: Compiled) -> Iterator[str]:
    if "stages" not in schedule:
        return
    kind = next((name for name in SCHEDULES if name in schedule), "1f1b")
    program = load_program(dict(compiled.files), digest=compiled.digest, world=len(compiled.counts))
    for table in program.exchanges:
        dtype = _short(program.tensors[table.tensor].dtype)
        yield f"pair {kind}: {dtype} crosses"
        shares = len(table.sources) > 1 and len({tuple(region) for _, region in table.sources}) == 1
        pieces = "shares" if shares else "one piece" if len(table.pieces) == 1 else "several pieces"
        yield f"pair {pieces} crosses"
        yield f"pair {kind}: {pieces} of {dtype}"


def _short(dtype: Any) -> str:
    words = {"float64": "f64", "float32": "f32", "int64": "i64"}
    name = str(dtype).removeprefix("torch.")
    return words.get(name, name)
