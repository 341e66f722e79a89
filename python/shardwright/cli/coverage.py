"""`shardwright ops coverage`: what of a model has no rule, where, and what splitting it would take."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..report.computed_work import operations_of
from ..report.summary import count_of
from ..schemas import answer
from .source import graph_and_python
from .style import paint
from .table import few
from .working import working

if TYPE_CHECKING:
    from .._core import Graph, Plan
    from .source import AsPython

Row = dict[str, Any]


def run(arguments: argparse.Namespace) -> None:
    from .._core import rule_coverage

    with working(arguments.model, "capture"):
        graph, as_python = graph_and_python(arguments)
    plan = _plan(arguments, graph)
    coverage = rule_coverage(graph, plan, {name: share for name, (_, share) in as_python.items()})
    for row in coverage["without_rule"]:
        row["reason"] = _reason(row, as_python)
        row["to_split"] = _to_split(row)
    if arguments.json:
        print(answer("ops-coverage", {"name": graph.model, **coverage}))
    else:
        print("\n".join(_lines(graph.model, plan, coverage)))


def _plan(arguments: argparse.Namespace, graph: Graph) -> Plan | None:
    from ..start.planning import make_plan

    if arguments.plan is None and arguments.devices is None:
        return None
    return make_plan(graph, arguments.plan or "data", arguments.devices, None)


def _reason(row: Row, as_python: AsPython) -> str | None:
    """Why it runs as Python: capture knows it of each module and function."""
    whys = dict.fromkeys(as_python[name][0] for name in row["names"] if name in as_python)
    return "; ".join(whys) or None


def _to_split(row: Row) -> str:
    target, name = row["target"], row["name"]
    call = target.rpartition(".")[0]
    stated = 'let it be traced, or state a rule: `sw.opaque(module, "... -> ...")`'
    rule = 'a rule: `sw.register_op("... -> ...")'
    return {
        "module": f"{stated} (docs/explanation/capture.md)",
        "function": f"{rule}` for `{name}` (docs/how-to/custom-operators.md)",
        "library": f"{rule}(torch.ops.{call})` (docs/how-to/custom-operators.md)",
        "call": f"a rule for such a call in the family {row['family']} (docs/how-to/adding-a-rule.md)",
        "operator": "no family has it: docs/how-to/adding-a-rule.md;"
        f" `shardwright ops discover {call.partition('.')[2]}` may find its rule",
    }[row["lack"]]


def _lines(model: str, plan: Plan | None, coverage: dict[str, Any]) -> Iterator[str]:
    whole, ruled = coverage["model"], coverage["with_rule"]
    yield (
        f"{model}: {ruled['operators']} of {count_of(whole['operators'], 'operator')} have a rule, with"
        f" {_shares(ruled, whole)}"
    )
    yield f"operations are those of a forward and backward: {operations_of(whole['operations'])}"
    if (kept := coverage["whole"])["operators"]:
        yield (
            f"of those with a rule {kept['operators']} leave no dim to be split, with"
            f" {_share(kept, whole, 'operations')} of the operations"
        )
    if plan is not None:
        ways = coverage["plan"].items()
        shares = [
            f"{way} {count_of(amount['operators'], 'operator')} with {_share(amount, whole, 'operations')}"
            for way, amount in ways
            if amount["operators"]
        ]
        yield f"{plan.name} on {count_of(plan.devices, 'device')}: {', '.join(shares)} of the operations"
    for row in coverage["without_rule"]:
        yield ""
        yield from _row(row, whole)


def _row(row: Row, whole: Row) -> Iterator[str]:
    called = f" `{row['name']}`" if row["name"] else ""
    runs = ", runs as Python" if row["python"] else ""
    yield paint(row["target"], "bold", sys.stdout) + f"{called}: {count_of(row['operators'], 'call')}{runs}"
    unknown = "" if row["counted"] or row["lack"] == "call" else ", its operations not counted"
    yield f"  has       {_shares(row, whole)}{unknown}"
    yield f"  in        {few(path or 'the model itself' for path in row['modules'])}"
    yield f"  at        {few(row['lines'])}"
    if row["reason"]:
        yield f"  because   {row['reason']}"
    yield f"  to split  {row['to_split']}"


def _shares(amount: Row, whole: Row) -> str:
    operations, activations, parameters = (
        _share(amount, whole, what) for what in ("operations", "activations", "parameters")
    )
    return (
        f"{operations} of the operations, {activations} of the bytes that operators give,"
        f" {parameters} of the parameters'"
    )


def _share(amount: Row, whole: Row, what: str) -> str:
    return f"{amount[what] / whole[what]:.1%}" if whole[what] else "0.0%"
