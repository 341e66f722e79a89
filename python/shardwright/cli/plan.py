"""`shardwright plan`: prints a plan, or what is different in two."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from typing import TYPE_CHECKING, Any

from .costs import kept_tensors
from .parser import Commands
from .style import paint

if TYPE_CHECKING:
    from .._core import Operator, Plan


def add(commands: Commands) -> None:
    from .model import add_arguments, add_memory

    plan = commands.add_parser("plan", help="print a plan; layers that are alike are one line")
    add_arguments(plan)
    plan.add_argument("--all", action="store_true", help="one line for each operator")
    plan.add_argument("--diff", nargs=2, metavar=("A", "B"), help="what two plans decide differently")
    plan.add_argument(
        "--explain",
        metavar="PATH",
        help="why `auto` divides this operator so, and what other ways would take",
    )
    add_memory(plan)
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from .._core import compile
    from ..memory import lines_of_memory, memory_of
    from ..work import lines_of_work, work_of
    from .found import asked_for, explained, found_of, lines_of, numbers_of
    from .model import graph_of, limit_of, plan_of, require_cluster

    if not arguments.diff:
        require_cluster(arguments)
    graph = graph_of(arguments, arguments.micro_batches)
    if arguments.diff:
        a, b = (plan_of(arguments, graph, plan) for plan in arguments.diff)
        print(json.dumps(_differences(a, b)) if arguments.json else "\n".join(_changes(a, b, arguments.all)))
        return
    found = found_of(arguments, graph)
    if arguments.explain is not None:
        for line in explained(asked_for(found, arguments.plan), graph, arguments.explain):
            print(line)
        return
    plan = plan_of(arguments, graph) if found is None else found.plan(0)
    compiled = compile(plan, memory=limit_of(arguments))
    memory = memory_of(compiled, arguments.optimizer)
    if arguments.json:
        told = {} if found is None else {"found": numbers_of(found)}
        print(json.dumps(_numbers(plan, graph.model) | {"memory": memory} | told))
    else:
        print(plan.text if arguments.all else plan.folded, end="")
        lines = [*_rewritings(plan), *lines_of_work(work_of(plan)), *lines_of_memory(memory)]
        for line in [*lines, *([] if found is None else lines_of(found))]:
            print(f"# {line}")


def _rewritings(plan: Plan) -> list[str]:
    return [f"rests on the rewriting of {rewriting}" for rewriting in plan.rewritings]


def _changes(a: Plan, b: Plan, every: bool) -> list[str]:
    """The lines of each that the other has not."""
    old, new = ((plan.text if every else plan.folded).splitlines()[2:] for plan in (a, b))
    lines = [line for line in difflib.ndiff(old, new) if line[0] in "-+"]
    if not lines:
        return [f"`{a.name}` and `{b.name}` decide the same"]
    colours = {"-": "red", "+": "green"}
    named = [f"- {a.name}, {a.devices} devices", f"+ {b.name}, {b.devices} devices"]
    return [paint(line, colours[line[0]], sys.stdout) for line in [*named, *lines]]


def _differences(a: Plan, b: Plan) -> dict[str, Any]:
    pairs = zip(_operators(a), _operators(b), strict=True)
    return {
        "a": _header(a),
        "b": _header(b),
        "operators": [
            {"name": one["name"], "path": one["path"], "a": _decided(one), "b": _decided(two)}
            for one, two in pairs
            if one != two
        ],
    }


def _decided(operator: dict[str, Any]) -> dict[str, Any]:
    return {"splits": operator["splits"], "devices": operator["devices"]}


def _numbers(plan: Plan, model: str) -> dict[str, Any]:
    from ..work import work_of

    return {
        "model": model,
        "plan": plan.name,
        "devices": plan.devices,
        "work": work_of(plan),
        "rewritings": plan.rewritings,
        "operators": _operators(plan),
        "recompute": _named(plan.recompute),
        "offload": _named(plan.offload),
        "state_on_host": plan.state_on_host,
        "held_on_host": plan.held_on_host,
        "text": plan.text,
    }


def _header(plan: Plan) -> dict[str, Any]:
    spans = {"recompute": _named(plan.recompute), "offload": _named(plan.offload)}
    named = {"name": plan.name, "devices": plan.devices}
    return {**named, **spans, "state_on_host": plan.state_on_host, "held_on_host": plan.held_on_host}


def _named(spans: list[list[Operator]]) -> list[list[str]]:
    return [[operator.name for operator in span] for span in spans]


def _operators(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "name": operator.name,
            "path": operator.path,
            "target": operator.target,
            "line": operator.line,
            "dims": dict(operator.dims),
            "splits": [list(split) for split in splits],
            "devices": devices,
            "cost": _cost(plan, operator),
        }
        for operator, splits, devices in plan.decisions
    ]


def _cost(plan: Plan, operator: Operator) -> dict[str, Any]:
    """Of the first part: no other is larger."""
    cost = plan.costs(operator)[0]
    return {
        "flops": cost.flops,
        "gradients": cost.gradients,
        "forward": dict(zip(("read", "written"), cost.forward, strict=True)),
        "backward": dict(zip(("read", "written"), cost.backward, strict=True)),
        "kept": {"tensors": kept_tensors(cost), "more": cost.kept[2]},
    }
