"""What was met: operators, families, sizes, features of programs and of plans. A zero says that less is
tested than it seems."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

from shardwright import Graph, Plan
from shardwright._core import Compiled, operators_table

from . import crossing
from .making import unread
from .operators import OPERATORS
from .pairs import Subject, Way

PLANS = ["value", "copies", "uneven", "nested", "repeated", "single", "random", "shares", "named"]
COMMUNICATIONS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange"]
COMMUNICATIONS += ["reduce_gradients", "exchange_gradients"]
PROGRAMS = [
    "size 0", "size 1", "float32", "int64", "bool", "tied", "frozen", "input gradient", "buffer",
    "buffer updated", "no_grad", "in place", "dead", "results", "outside", "random", "several losses",
    "several uses", "module",
    "constant", "no rule",
]  # fmt: skip
WAYS = ["outputs all", "inputs local", "product of named plans", *(f"{n} devices" for n in (1, 2, 3, 4))]
WAYS += ["steps of one", "steps of several", "pipeline", "halves", "zero", "recompute"]


def wanted() -> list[str]:
    """Every counter that must not be zero after a run of minutes."""
    return [
        *(f"family {family}" for family in families()),
        *(f"operator {op.name}" for op in OPERATORS),
        *(f"program {name}" for name in PROGRAMS),
        *(f"plan {name}" for name in PLANS),
        *(f"way {name}" for name in WAYS),
        *(f"communication {name}" for name in COMMUNICATIONS),
    ]


def of_subject(subject: Subject) -> Counter[str]:
    program, text = subject.program, subject.captured.graph_text
    seen = Counter(f"operator {name}" for name in program.operators)
    for op in subject.graph.operators:
        family = family_of().get(op.target)
        seen[f"family {family}" if family else "without a family"] += 1
        seen["program no rule"] += op.rule is None
        seen[f"target {op.target}"] += 1
    shapes = [dim for op in subject.graph.operators for shape in op.shapes[1] for dim in shape]
    reads = Counter(name for step in program.steps for name in step.reads)
    met = {
        "size 0": 0 in shapes,
        "size 1": 1 in shapes,
        "float32": " f32[" in text,
        "int64": " i64[" in text,
        "bool": " bool[" in text or " b8[" in text,
        "tied": any(leaf.kind == "tied" for leaf in program.leaves),
        "frozen": any(leaf.kind == "param" and not leaf.grad for leaf in program.leaves),
        "input gradient": any(leaf.kind == "input" and leaf.grad for leaf in program.leaves),
        "buffer": any(leaf.kind == "buffer" for leaf in program.leaves),
        "buffer updated": "\nupdate " in text,
        "no_grad": any(step.quiet for step in program.steps),
        "in place": any(not step.targets or re.search(r"\w_\(", step.text) for step in program.steps),
        "dead": bool(unread(program)),
        "results": bool(program.results),
        "outside": program.outside and bool(program.results),
        "random": program.random,
        "several losses": len(program.losses) > 1,
        "several uses": max(reads.values(), default=0) > 1,
        "module": any(leaf.kind == "module" for leaf in program.leaves),
        "constant": "\nconst " in text or "aten.full." in text or "aten.zeros." in text,
    }
    seen.update(f"program {name}" for name, is_met in met.items() if is_met)
    return seen


def of_pair(plan: Plan, graph: Graph, way: Way, compiled: Compiled) -> Counter[str]:
    seen = crossing.of_pair(plan, graph, way.plan, compiled, family_of())
    for op, splits, devices in plan.decisions:
        seen["plan single"] += not splits
        seen["plan nested"] += len(splits) > 1
        seen["plan repeated"] += len(set(devices)) < len(devices)
        for dim, parts in splits:
            seen[f"plan {'copies' if dim == 'replicate' else dim}"] += dim in ("value", "replicate")
            seen["plan uneven"] += dim in op.dims and op.dims[dim] % parts != 0
    # Operators that only a plan makes, where parts of the experts exchange rows.
    seen["family rows"] += any("dispatch(" in text for text in compiled.files.values())
    for counts in compiled.counts:
        seen.update({f"communication {kind.split()[1]}": count for kind, count in counts.items()})
    kind = way.plan.partition(":")[0]
    seen[f"plan {kind}" if kind in ("random", "shares") else "plan named"] += 1
    seen[f"way {way.devices} devices"] += 1
    seen["way product of named plans"] += " x " in way.plan
    seen["way steps of one"] += way.batches == 1
    seen["way steps of several"] += way.batches > 1
    seen["way pipeline"] += "stages" in way.plan
    seen["way halves"] += "zb-" in way.plan
    seen["way zero"] += "zero" in way.plan
    seen["way recompute"] += "recompute" in way.plan
    seen["way outputs all"] += way.outputs == "all"
    seen["way inputs local"] += way.inputs == "local"
    return seen


@cache
def family_of() -> dict[str, str]:
    """The family of each operator that has rules, from the generated page."""
    families = {}
    for line in operators_table().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and "`" in cells[3]:
            families |= {target.strip("` "): cells[0] for target in cells[3].split(",")}
    return families


def families() -> list[str]:
    """All but that of functions which users write: programs have none of these."""
    return [family for family in dict.fromkeys(family_of().values()) if family != "registered"]


def dims_of(graph: Graph) -> int:
    return sum(bool(op.dims) for op in graph.operators)
