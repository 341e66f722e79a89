"""`shardwright schedule`: the order with the fewest bubbles, for known shapes and for blocks of a file."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PlanError
from ..schemas import answer
from .parser import Commands, suggest
from .picture import add_svg, draw, lines_of_picture
from .style import paint
from .working import working

if TYPE_CHECKING:
    from .._core import FoundOrder

SHAPES = ("v", "x", "m", "nn", "k", "mllm", "alphafold")


def add(commands: Commands) -> None:
    schedule = commands.add_parser("schedule", help="search for a pipeline schedule with the fewest bubbles")
    shape = schedule.add_argument("shape", help=f"one of {', '.join(SHAPES)}, or a file of blocks")
    suggest(shape, SHAPES)
    schedule.add_argument("--devices", type=int, help="for a shape; 4 if not given")
    schedule.add_argument("--micro-batches", type=int, metavar="M", help="in a step; 4 for each device")
    schedule.add_argument("--memory", type=int, metavar="K", help="the room of each device")
    schedule.add_argument("--in-flight", type=int, metavar="N", help="the most micro-batches in flight")
    schedule.add_argument("--deadline", type=float, metavar="S", help="search for so many seconds")
    schedule.add_argument("--blocks", action="store_true", help="print the blocks as a file, and end")
    schedule.add_argument("--timetable", action="store_true", help="print the lines of a plan only")
    add_svg(schedule, "the blocks of a step")
    schedule.add_argument("--json", action="store_true", help="print what is known as JSON")
    schedule.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from .._core import search_order

    _possible(arguments)
    text = blocks_of(arguments)
    if arguments.blocks:
        print(text, end="")
        return
    batches = 4 * _devices(text) if arguments.micro_batches is None else arguments.micro_batches
    start = time.perf_counter()
    try:
        with working(arguments.shape, "search"):
            order = search_order(
                text,
                batches,
                memory=arguments.memory,
                in_flight=arguments.in_flight,
                seconds=arguments.deadline,
            )
    except PlanError as error:
        raise _in_file(error, arguments.shape) from None
    seconds = time.perf_counter() - start
    draw(arguments, lambda: order.svg(_title(text, arguments.shape)))
    if arguments.json:
        print(answer("schedule", _numbers(order, seconds)))
    elif arguments.timetable:
        print(_timetable(order), end="")
    else:
        print(order.figure)
        print("\n".join([*_lines(order, seconds), *lines_of_picture(arguments)]))


def _title(text: str, shape: str) -> str:
    devices = _devices(text)
    named = f"Shape {shape}" if shape in SHAPES else Path(shape).name
    return f"{named} on {devices} device{'' if devices == 1 else 's'}"


def _possible(arguments: argparse.Namespace) -> None:
    minima = {"devices": 1, "micro_batches": 0, "memory": 0, "in_flight": 1, "deadline": 0.0}
    for name, minimum in minima.items():
        given = getattr(arguments, name)
        if given is not None and not minimum <= given < 2**31:
            flag = f"--{name.replace('_', '-')}"
            raise PlanError("SW0374", f"`{flag} {given}` is not a valid number", fix="give another number")


def _in_file(error: PlanError, file: str) -> PlanError:
    place = f"{error.place} of {file}" if error.place else None
    return PlanError(error.code, error.what, place=place, why=error.why, fix=error.fix)


def blocks_of(arguments: argparse.Namespace) -> str:
    """The text of a shape, or of the file of that name."""
    from .._core import blocks_of_shape

    path = Path(arguments.shape)
    if arguments.shape in SHAPES or not path.exists():
        devices = 4 if arguments.devices is None else arguments.devices
        return blocks_of_shape(arguments.shape, devices, arguments.memory)
    if arguments.devices is not None:
        raise PlanError(
            "SW0374",
            f"`{path}` itself says how many devices there are",
            why="`--devices` is for a shape that has a name",
            fix="leave `--devices` out",
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            "SW0374", f"`{path}` cannot be read", why=str(error), fix="name a file of blocks"
        ) from None


def _devices(text: str) -> int:
    """Of the first line that says it; whether it is right is seen when the blocks are read."""
    words = [line.split() for line in text.splitlines() if line.startswith("devices ")]
    return int(words[0][1]) if words and words[0][1].isdecimal() and len(words[0][1]) < 4 else 1


def _timetable(order: FoundOrder) -> str:
    if order.timetable is None:
        raise PlanError(
            "SW0374",
            "the blocks have no names that a plan knows",
            why="a timetable speaks of tasks: `F0` is the forward of block 0, `B0` its backward",
            fix="name the blocks F0, F1, ..., B1, B0",
        )
    return order.timetable


def _lines(schedule: FoundOrder, seconds: float) -> list[str]:
    period = (
        "proved the fewest"
        if schedule.period == schedule.period_bound
        else f"at least {_lower_bound(schedule)}"
    )
    step = (
        "proved the shortest"
        if schedule.makespan == schedule.makespan_bound
        else f"at most {_gap(schedule):.1%} over"
    )
    order = "in that order" if schedule.in_turn else "in an order of its own"
    count = "a micro-batch" if schedule.group == 1 else f"{schedule.group} micro-batches"
    return [
        f"steady state: {count} every {schedule.period}, {schedule.in_flight} in flight",
        f"  bubbles {schedule.bubbles}, {period}"
        f" (no period of {count} is shorter than {schedule.period_bound})",
        f"step: {len(schedule.starts)} micro-batches, {order}, take {schedule.makespan}",
        f"  {step} (none takes less than {schedule.makespan_bound})",
        paint(f"searched {schedule.nodes:,} nodes in {seconds:.3f} s", "dim", sys.stdout),
    ]


def _lower_bound(order: FoundOrder) -> int:
    return order.bubbles - (order.period - order.period_bound)


def _gap(order: FoundOrder) -> float:
    return order.makespan / order.makespan_bound - 1


def _numbers(order: FoundOrder, seconds: float) -> dict[str, Any]:
    return {
        "group": order.group,
        "period": order.period,
        "period_bound": order.period_bound,
        "bubbles": order.bubbles,
        "proved": order.period == order.period_bound,
        "in_flight": order.in_flight,
        "micro_batches": len(order.starts),
        "makespan": order.makespan,
        "makespan_bound": order.makespan_bound,
        "gap": _gap(order),
        "in_turn": order.in_turn,
        "nodes": order.nodes,
        "seconds": seconds,
        "timetable": order.timetable,
        "blocks": [
            {
                "name": name,
                "devices": devices,
                "time": length,
                "memory": memory,
                "steady": [row[at] for row in order.steady],
                "starts": [row[at] for row in order.starts],
            }
            for at, (name, devices, length, memory) in enumerate(order.blocks)
        ],
    }
