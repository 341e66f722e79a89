"""`shardwright ops`: the operators that have rules, what the rule of one is, and what of a model has one."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from . import discover, rules
from .costs import cost_lines
from .model import add_model, add_sizes
from .parser import Commands
from .style import paint
from .targets import graph_of_examples, targets_of
from .working import working

if TYPE_CHECKING:
    from .._core import Graph, Operator


def add(commands: Commands) -> None:
    ops = commands.add_parser("ops", help="say which operators have rules")
    ops.set_defaults(run=run_families)
    actions = ops.add_subparsers(metavar="ACTION")
    every = actions.add_parser("list", help="all of them, by family")
    every.set_defaults(run=run_list)
    show = actions.add_parser("show", help="the rule of one, its dims, its cost and an example")
    show.add_argument("name", help="such as aten.linear.default, or only linear")
    show.add_argument(
        "model", nargs="?", help="where the examples are from; without it, the small GPT of the demo"
    )
    add_sizes(show)
    show.set_defaults(run=run_show)
    cover = actions.add_parser(
        "coverage", help="show which operators of a model have rules, and which have none"
    )
    add_model(cover)
    cover.add_argument("--plan", help="also what a plan splits: a name, or the path of a plan file")
    cover.add_argument("--devices", type=int, help="for how many")
    cover.add_argument("--json", action="store_true", help="print what is known as JSON")
    cover.set_defaults(run=run_coverage)
    check = actions.add_parser("verify", help="verify rules against whole operators on real tensors")
    check.add_argument(
        "names",
        nargs="*",
        metavar="NAME|MODEL",
        help="operators, such as linear, and whose calls of them; without any, all of the demo's small GPT",
    )
    add_sizes(check)
    check.add_argument("--json", action="store_true", help="print what is known as JSON")
    check.set_defaults(run=rules.run)
    find = actions.add_parser("discover", help="discover the rule of a function by running it on parts")
    find.add_argument(
        "model",
        metavar="FUNCTION|MODEL",
        help="FILE.py:FUNCTION or MODULE:FUNCTION, which returns a function and its example arguments;"
        " or a model, of which each operator without a rule is tried",
    )
    add_sizes(find)
    find.add_argument("--json", action="store_true", help="print what is known as JSON")
    find.set_defaults(run=discover.run)


# The grammar is in the doc of `crates/rules/src/algebra.rs`.
MARKS = {
    "+": "parts give sums that are added up",
    "^": "not split",
    "@": "rewritten before it is split",
    "~": "a part knows where it begins",
    "!": "given to one part only",
}


# So many names of a family are read.
NAMED = 3
FAMILY = re.compile(
    r"^\| (?P<name>\w+) \| (?P<rewritten>\w*) \| [^|]+ \| (?P<operators>`.*`) \|$", re.MULTILINE
)


def run_families(_: argparse.Namespace) -> None:
    """A line for each family."""
    from .._core import operators_table

    families = []
    for family in FAMILY.finditer(operators_table()):
        names = re.findall(r"`([^`]+)`", family["operators"])
        # Overloads of one operator are read as one.
        short = list(dict.fromkeys(re.sub(r"^aten\.(\w+)\..*|\.default$", r"\1", name) for name in names))
        families.append(
            (family["name"], len(names), ", ".join(short[:NAMED]) + (", ..." if short[NAMED:] else ""))
        )
    print(f"{sum(count for _, count, _ in families)} operators of {len(families)} families have rules")
    print()
    print(f"{'family':<16} {'operators':>9}  such as")
    for name, count, some in families:
        print(f"{name:<16} {count:>9}  {some}")
    print()
    print("next: `shardwright ops show linear` has the rule of one, `shardwright ops list` all of them,")
    print("`shardwright ops coverage MODEL` what of a model has none")


def run_list(_: argparse.Namespace) -> None:
    from .._core import operators_table

    print(operators_table(), end="")


def run_coverage(arguments: argparse.Namespace) -> None:
    from . import coverage

    coverage.run(arguments)


def run_show(arguments: argparse.Namespace) -> None:
    targets = targets_of(arguments.name)
    with working(arguments.model or "demo", "capture"):
        graph = graph_of_examples(arguments)
    for target, (family, rewritten) in targets.items():
        print(paint(target, "bold", sys.stdout) + f": of the family {family}")
        if rewritten:
            print("  rewritten into simpler operators before dims marked `@` are split")
        examples = _examples(graph, target)
        for operator in examples:
            print("\n".join(_lines(graph, operator)))
        rules = "".join(operator.rule or "" for operator in examples)
        marks = [f"`{mark}` {meaning}" for mark, meaning in MARKS.items() if mark in rules]
        if marks:
            print(f"  marks    {', '.join(marks)}")
        if not examples:
            print(f"  {graph.model} does not call it; name a MODEL that does, to see its rule")


def _examples(graph: Graph, target: str) -> list[Operator]:
    """One for each rule that the operator has in the model."""
    rules: dict[str | None, Operator] = {}
    for operator in graph.operators:
        if operator.target == target:
            rules.setdefault(operator.rule, operator)
    return list(rules.values())


def _lines(graph: Graph, operator: Operator) -> list[str]:
    inputs, outputs = (", ".join(map(str, shapes)) for shapes in operator.shapes)
    dims = ", ".join(f"{name} ({size})" for name, size in operator.dims.items())
    calls = [line for line in graph.text.splitlines() if re.match(rf"op %{re.escape(operator.name)} ", line)]
    where = f"{operator.path or graph.model} at {operator.line}"
    return [
        f"  rule     {operator.rule or 'none for this call'}",
        f"  dims     {dims or 'none that may be split'}",
        f"  shapes   {inputs} -> {outputs}",
        *cost_lines(operator.cost),
        f"  example  {calls[0].split(' in ')[0].removeprefix('op ') if calls else operator.name}",
        f"           in {where}",
    ]
