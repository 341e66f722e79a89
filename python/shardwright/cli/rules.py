"""`shardwright ops verify`: each rule beside the whole operator, on real tensors."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CaptureError
from ..schemas import answer
from ..shipped.table import SHIPPED
from .style import paint
from .targets import graph_of_examples, targets_of
from .working import working

if TYPE_CHECKING:
    from ..rules.verifying import Verified


def run(arguments: argparse.Namespace) -> None:
    from ..rules.verifying import verify_rules, wrong_rule

    models = [name for name in arguments.names if _is_model(name)]
    names = [name for name in arguments.names if name not in models]
    if len(models) > 1:
        named = " and ".join(models[:2])
        raise CaptureError(
            "SW0116", f"{named} are two models", why="one is verified at a time", fix="name one"
        )
    arguments.model = models[0] if models else None
    if arguments.model is None:
        _targets(names)  # what is misspelt is told before the demo's model is captured
    with working(arguments.model or "demo", "capture"):
        graph = graph_of_examples(arguments)
    wanted = _targets(names)
    verified = []
    for one in verify_rules(graph, lambda target: not wanted or target in wanted):
        verified.append(one)
        if not arguments.json:
            print("\n".join(_lines(one)), flush=True)
    if arguments.json:
        print(answer("ops-verify", {"model": graph.model, "calls": [_plain(one) for one in verified]}))
    else:
        print(_count(verified, graph.model, wanted))
    wrong = [one for one in verified if one.problem is not None]
    if wrong:
        raise wrong_rule(wrong, graph.model)


def _targets(names: Iterable[str]) -> set[str]:
    """Of operators, and of functions that the model's file has registered."""
    from ..as_python import all_registered

    targets: set[str] = set()
    for name in names:
        registered = {
            one.name for one in all_registered() if name in (one.name, re.split("[:.]", one.name)[-1])
        }
        targets |= registered or set(targets_of(name))
    return targets


def _is_model(name: str) -> bool:
    return name in SHIPPED or ":" in name or "/" in name or Path(name).is_file()


def _lines(one: Verified) -> list[str]:
    operator = one.operator
    inputs, outputs = (", ".join(map(str, shapes)) for shapes in operator.shapes)
    lines = [
        paint(operator.target, "bold", sys.stdout) + f"  {inputs} -> {outputs}",
        *([f"  {operator.rule}"] if operator.rule else []),
    ]
    if one.skipped is not None:
        return [*lines, f"  not tried: {one.skipped}"]
    good = [str(tried) for tried in one.tried if tried.problem is None]
    worst = max((tried.difference for tried in one.tried if tried.problem is None), default=0.0)
    if good:
        lines.append(
            f"  {paint('equal', 'green', sys.stdout)}    {'  '.join(good)}  (at most {worst:.0e} apart)"
        )
    for tried in one.tried:
        if tried.problem is not None:
            lines.append(f"  {paint('differs', 'red', sys.stdout)}  {tried}: {tried.problem}")
    return lines


def _count(verified: list[Verified], model: str, wanted: Iterable[str]) -> str:
    if not verified:
        names = ", ".join(sorted(wanted)) or "any operator"
        return f"{model} does not call {names}; name a model that does"
    tried = [tried for one in verified for tried in one.tried]
    wrong = sum(t.problem is not None for t in tried)
    skipped = sum(one.skipped is not None for one in verified)
    return (
        f"{len(verified)} calls of {len({one.operator.target for one in verified})} operators of {model},"
        f" {len(tried)} ways to split them: {len(tried) - wrong} equal, {wrong} not;"
        f" {skipped} calls not tried"
    )


def _plain(one: Verified) -> dict[str, Any]:
    operator = one.operator
    return {
        "target": operator.target,
        "rule": operator.rule,
        "name": operator.name,
        "path": operator.path,
        "line": operator.line,
        "shapes": {"inputs": operator.shapes[0], "outputs": operator.shapes[1]},
        "skipped": one.skipped,
        "splits": [
            {
                "splits": [list(split) for split in tried.splits],
                "partial": list(tried.partial),
                "difference": tried.difference,
                "problem": tried.problem,
            }
            for tried in one.tried
        ],
    }
