"""What is asked first of a plan: which it is, how long it takes, how much memory, how good, how to run it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ..report.memory import size_of, status_of
from ..report.summary import time_of
from ..start.auto_plan import AUTO

if TYPE_CHECKING:
    from .._core import Found, Simulated

# As wide as a terminal that a person reads in.
WIDTH = 100
NAMES = 9
# What has less of a step is left out.
SMALLEST = 1e-3
PARTS = ("forward", "backward", "again", "copies", "exposed", "idle", "update")
# Of each what a person calls it here.
CALLED = {"again": "recompute"}


def line(name: str, said: str) -> str:
    """`memory   1.4 MiB ...`: what is longer than a line goes on below."""
    indent = " " * NAMES
    return textwrap.fill(
        f"{name:<{NAMES}}{said}",
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrapped(said: str) -> str:
    return textwrap.fill(said, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def of_memory(memory: Mapping[str, Any], there: int | None) -> str:
    if there is None:
        return f"{size_of(memory['total'])} on rank {memory['rank']}, which needs most"
    fits = "it fits" if memory["total"] <= there else "it does not fit"
    return (
        f"{size_of(memory['total'])} of {size_of(there)} on rank {memory['rank']}, which needs most: {fits}"
    )


def of_what_is_next(plan: str, step: Simulated | None) -> list[str]:
    """Where a plan that was named does not fit."""
    if plan == AUTO or step is None or status_of(step) == 0:
        return []
    said = "next: without `--plan` one is looked for that fits, in as many micro-batches as are best"
    return ["", said]


def of_best(search: Found) -> str | None:
    """How far the step of a plan that was found is from the best, at most."""
    step = search.rows[0]["seconds"]
    if search.bound <= 0:
        return None
    times = f"this one takes at most {step / search.bound:.2f} times that"
    said = f"no plan takes less than {time_of(search.bound)}: {times}"
    late = search.tried[0] < search.tried[1]
    return said + ("; the deadline ended the search" if late else "")


def of_run(plan: str, batches: int | None) -> str:
    """`plan` is a name, or a file."""
    cut = f", micro_batches={batches}" if batches is not None and batches > 1 else ""
    return f'sw.parallelize(model, inputs, plan="{plan}"{cut})'


def tables(memory: Mapping[str, Any], seconds: float | None, parts: Mapping[str, float]) -> Iterator[str]:
    """Where the time of a step goes, and beside it what the memory is for."""
    time: list[tuple[str, str]] = []
    if seconds is not None and seconds > 0:
        shown = [name for name in PARTS if parts[name] >= SMALLEST * seconds]
        time = [("step", time_of(seconds))]
        time += [(CALLED.get(name, name), f"{parts[name] / seconds:.1%}") for name in shown]
    details = {"optimizer": f"optimizer ({memory['optimizer']})"}
    held = [("memory", size_of(memory["total"]))]
    held += [(details.get(name, name), size_of(size)) for name, size in memory["peak"].items() if size]
    sides = [side for side in (time, held) if side]
    widths = [[max(len(cell[at]) for cell in side) for at in (0, 1)] for side in sides]
    for pair in zip_longest(*sides, fillvalue=("", "")):
        cells = (_cell(cell, *wide) for cell, wide in zip(pair, widths, strict=True))
        yield "      ".join(cells).rstrip()
    if memory["offloaded"]:
        yield f"up to {size_of(memory['offloaded'])} more are on its host meanwhile"
    if memory["at"]:
        yield wrapped(f"the most memory is in {memory['at']}")


def _cell(cell: Sequence[str], name: int, figure: int) -> str:
    return f"{cell[0]:<{name}}  {cell[1]:>{figure}}"
