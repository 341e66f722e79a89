"""How long it takes to find the order of blocks with the fewest bubbles, for the shapes of Tessel.

Tessel's figures are of its published code (HPCA 2024), which asks Z3, run for four devices on a machine of
two cores.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from tables import Table, time_of

from shardwright._core import FoundOrder, blocks_of_shape, search_order

DEVICES = [4, 8, 16]
# Steps are of so many micro-batches for each device.
BATCHES = 4


@dataclass(frozen=True)
class Theirs:
    seconds: float
    bubbles: int
    in_flight: int


TESSEL = {
    "v": Theirs(0.91, 0, 4),
    "x": Theirs(8.1, 0, 3),
    "m": Theirs(57, 0, 6),
    "nn": Theirs(171, 0, 6),
    "k": Theirs(3.1, 0, 3),
    "mllm": Theirs(194, 0, 6),
    "alphafold": Theirs(60, 2, 4),
}


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 5
    table = Table(
        "schedules",
        "Orders with the fewest bubbles",
        "Time to search the steady state and a step of four micro-batches for each device, one thread,"
        f" medians of {repeats}. Bubbles are how long the busiest device waits in a period; `*`: proved the"
        " fewest. A gap is by how much the step is longer than what none is shorter than. Tessel's figures"
        " are those of its code (HPCA 2024), run on two cores for four devices.",
        ["", "devices", "bubbles", "period", "found in", "step", "gap", "Tessel's bubbles", "its search"],
    )
    rows = [_found(table, name, devices, None, repeats) for name in TESSEL for devices in DEVICES]
    few = TESSEL["alphafold"].in_flight
    rows.append(_found(table, "alphafold", 4, few, repeats))
    slowest = max(row["seconds"] for row in rows if row["devices"] == 4)
    table.notes.append(f"The slowest on 4 devices takes {time_of(slowest)}.")
    table.values = {"found": rows}
    return table


def _found(
    table: Table, name: str, devices: int, in_flight: int | None, repeats: int
) -> dict[str, str | int | float]:
    blocks, seconds = blocks_of_shape(name, devices), []
    for _ in range(repeats):
        start = time.perf_counter()
        order = search_order(blocks, BATCHES * devices, in_flight=in_flight)
        seconds.append(time.perf_counter() - start)
    middle, gap = statistics.median(seconds), order.makespan / order.makespan_bound - 1
    few = f", {in_flight} under way" if in_flight else ""
    theirs = TESSEL[name] if devices == DEVICES[0] else None
    table.add(
        f"`{name}`{few}",
        str(devices),
        f"{order.bubbles}{'*' if order.period == order.period_bound else ''}",
        str(order.period),
        time_of(middle),
        str(order.makespan),
        f"{gap:.1%}",
        str(theirs.bubbles) if theirs else "",
        time_of(theirs.seconds) if theirs else "",
    )
    return {"shape": name, "devices": devices, "seconds": middle, **_numbers(order)}


def _numbers(order: FoundOrder) -> dict[str, int]:
    return {
        "bubbles": order.bubbles,
        "period": order.period,
        "period_bound": order.period_bound,
        "makespan": order.makespan,
        "makespan_bound": order.makespan_bound,
        "nodes": order.nodes,
    }
