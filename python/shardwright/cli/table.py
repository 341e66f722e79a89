"""A plan as a table: modules that are decided alike are one module, with what they take of a step."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._core import Plan, Simulated, plan_homes, plan_rows
from ..report.memory import size_of
from ..report.summary import count_of, time_of

# What has less of the model's work than this, and communicates nothing, is only counted.
LITTLE = 1e-3

# So many names are read.
MOST = 12

# Paths that are longer than what is left of a line go on in the next one.
WIDTH, NARROWEST = 100, 24

GATHERED = {"step": "gathered once a step", "pass": "gathered for each pass"}
REDUCED = {"last": "with the last micro-batch", "each": "with each micro-batch"}


def lines_of_table(plan: Plan, step: Simulated | None) -> Iterator[str]:
    modules = plan_rows(plan, step)
    shown = [module for module in modules if _counts(module, step)]
    cells = [_cells(module, step) for module in shown]
    head = ["modules", "sharded", "devices", *(["takes"] if step is None else ["computes", "sends", "waits"])]
    if any(module["recomputed"] or module["offloaded"] for module in shown):
        head.append("for backward")
        for module, line in zip(shown, cells, strict=True):
            line.append(_for_backward(module))
    widths = [max(map(len, column)) for column in zip(head[1:], *cells, strict=True)]
    left = WIDTH - sum(widths) - 2 * len(widths)
    places = [_wrapped(module["modules"], max(left, NARROWEST)) for module in shown]
    first = max(len(line) for place in [["modules"], *places] for line in place)
    yield _line(head[0], head[1:], first, widths)
    for place, line in zip(places, cells, strict=True):
        yield _line(place[0], line, first, widths)
        yield from place[1:]
    others = sum(module["operators"] for module in modules if not _counts(module, step))
    others += sum(module["others"] for module in shown)
    if others:
        yield f"and {count_of(others, 'operator')} with next to no work, maybe sharded differently (--text)"


def lines_of_parameters(plan: Plan) -> Iterator[str]:
    """Where parameters live."""
    for over, gather, reduce, count, size in plan_homes(plan):
        yield (
            f"{size_of(size)} in {count_of(count, 'parameter')} are sharded over {over} devices each,"
            f" {GATHERED[gather]}, their gradients reduced {REDUCED[reduce]}"
        )
    for what, names in (("state of", plan.state_on_host), ("parameters:", plan.held_on_host)):
        if names:
            yield f"offloaded between steps: {what} {count_of(len(names), 'parameter')}"


def lines_of_moves(step: Simulated) -> Iterator[str]:
    """What is moved for no module."""
    for direction, (moves, waits, size) in (
        ("for parameters and their gradients", step.of_parameters),
        ("between stages", step.between_stages),
    ):
        if size:
            waited = f"{time_of(waits)} of it exposed"
            yield f"{direction} a rank moves {size_of(size)} in {time_of(moves)}, {waited}"


def _counts(module: dict[str, Any], step: Simulated | None) -> bool:
    if step is None:
        return bool(module["work"] >= LITTLE)
    return bool(module["computes"] + module["communicates"] >= LITTLE * step.seconds)


def _cells(module: dict[str, Any], step: Simulated | None) -> list[str]:
    decided = [module["divided"], module["devices"]]
    if step is None:
        return [*decided, f"{module['work']:.1%}"]
    sends = f"{size_of(module['bytes'])}, {time_of(module['communicates'])}" if module["communicates"] else ""
    waits = time_of(module["exposed"]) if module["exposed"] else ""
    return [*decided, time_of(module["computes"]), sends, waits]


def _for_backward(module: dict[str, Any]) -> str:
    said = [
        ("all " if module[word] == module["operators"] else "some ") + word
        for word in ("recomputed", "offloaded")
        if module[word]
    ]
    return ", ".join(said)


def _wrapped(paths: Sequence[str], wide: int) -> list[str]:
    """Paths of one module, what they have in common once, in lines that are not too long."""
    if len(paths) == 1:
        return [paths[0] or "all of the model"]
    words = [path.split(".") for path in paths]
    common = 0
    while all(len(it) > common for it in words) and len({it[common] for it in words}) == 1:
        common += 1
    shortest = "itself" if common else "the model itself"
    rests = few(".".join(it[common:]) or shortest for it in words)
    text = ".".join(words[0][:common]) + ": " + rests if common else rests
    return textwrap.wrap(text, wide, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def few(names: Iterable[str]) -> str:
    """The first of them, and how many more there are."""
    first, more = (known := list(names))[:MOST], len(known) - MOST
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _line(first: str, cells: Sequence[str], width: int, widths: Sequence[int]) -> str:
    """Figures stand at the right of their columns."""
    aligned = [
        f"{cell:>{wide}}" if number >= 2 else f"{cell:<{wide}}"
        for number, (cell, wide) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join([f"{first:<{width}}", *aligned]).rstrip()
