"""`shardwright plan`: a plan and what it takes, or what is different in two."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ShardwrightError
from ..schemas import answer
from .cluster import write
from .costs import kept_tensors
from .parser import Commands
from .picture import add_svg, draw, lines_of_picture
from .style import paint
from .working import working

if TYPE_CHECKING:
    from .._core import Found, Graph, Operator, Plan, Simulated


# How a plan is run that has no name.
WRITTEN_FIRST = 'with -o my.plan it is written, then sw.parallelize(model, inputs, plan="my.plan")'


def add(commands: Commands) -> None:
    from .model import add_arguments, add_memory

    plan = commands.add_parser("plan", help="show a plan, chosen or named, and what it takes")
    add_arguments(plan)
    plan.add_argument("-o", "--to", metavar="FILE", help="write the plan there, as a file that --plan takes")
    plan.add_argument("--text", action="store_true", help="print that file instead of a table")
    plan.add_argument("--all", action="store_true", help="print it with one line for each operator")
    plan.add_argument("--diff", nargs=2, metavar=("A", "B"), help="show what two plans decide differently")
    plan.add_argument(
        "--explain",
        metavar="PATH",
        help="why `auto` splits this operator this way, and what other ways would take",
    )
    plan.add_argument(
        "--verbose", action="store_true", help="also what was searched and rewritten ($SHARDWRIGHT_VERBOSE)"
    )
    add_svg(plan, "how each module is sharded")
    add_memory(plan)
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from .._core import sharding_svg
    from ..report.progress import Progress, wanted
    from .answer import of_what_is_next
    from .found import asked_for, explained, explained_in_numbers, operator_at
    from .model import plan_of, require_cluster
    from .parts import chosen
    from .source import graph_of

    if arguments.diff:
        with working(arguments.model, "capture"):
            graph = graph_of(arguments)
        a, b = (plan_of(arguments, graph, plan) for plan in arguments.diff)
        print(
            answer("plan-diff", _differences(a, b))
            if arguments.json
            else "\n".join(_changes(a, b, arguments.all))
        )
        return 0
    require_cluster(arguments)
    with Progress(wanted(None)).phases(arguments.model) as phases:
        path = arguments.explain
        graph, search, cut = chosen(
            arguments, phases.begin, lambda graph: path is None or operator_at(graph, path)
        )
        if path is not None:
            asked = asked_for(search, arguments.plan), graph, path, lambda: _others(arguments, graph)
            print(
                answer("plan-explain", explained_in_numbers(*asked))
                if arguments.json
                else "\n".join(explained(*asked))
            )
            return 0
        plan = plan_of(arguments, graph) if search is None else search.plan(0)
        answered = _Answer.from_arguments(arguments, plan, graph, (search, cut), phases.begin)
    if arguments.to:
        write("SW0928", "the plan", Path(arguments.to), plan.folded)
    draw(arguments, lambda: sharding_svg(plan))
    if arguments.json:
        print(answer("plan", answered.numbers(graph.model)))
        return answered.exit
    for line in (
        answered.text(arguments.all) if arguments.all or arguments.text else answered.table(graph.model)
    ):
        print(line)
    if arguments.to:
        print(f"The plan is in {arguments.to}.")
    # A text is a plan's file.
    is_table = not (arguments.all or arguments.text)
    for line in of_what_is_next(arguments.plan, answered.step) if is_table else []:
        print(line)
    for line in lines_of_picture(arguments):
        print(line)
    return answered.exit


def _others(arguments: argparse.Namespace, graph: Graph) -> Found:
    """The plan that was chosen and the next best ones."""
    from ..start.auto_plan import AUTO
    from .cluster import choice_of
    from .found import NEXT
    from .model import devices_of

    devices = devices_of(arguments, graph, AUTO)
    assert devices is not None
    return choice_of(arguments).search(graph, devices, wanted=NEXT)


@dataclass(frozen=True)
class _Answer:
    """A plan, and what is known of it."""

    plan: Plan
    search: Found | None
    cut: str | None
    """Into how many micro-batches the batch was cut, if that was chosen."""
    memory: dict[str, Any]
    step: Simulated | None
    on: str
    """The cluster and the micro-batches of a step, if there is one."""
    run: str
    """The plan as `sw.parallelize` takes it: a name or a file."""
    batches: int | None = None
    verbose: bool = False

    @classmethod
    def from_arguments(
        cls,
        arguments: argparse.Namespace,
        plan: Plan,
        graph: Graph,
        chosen: tuple[Found | None, str | None],
        watch: Callable[[str], object],
    ) -> _Answer:
        from .._core import compile, simulate_step
        from ..report.memory import memory_of
        from ..report.progress import verbose
        from ..report.summary import batches_of
        from .cluster import choice_of
        from .model import limit_of

        compiled = compile(plan, watch=watch, memory=limit_of(arguments))
        memory = memory_of(compiled, arguments.optimizer)
        if arguments.cluster is None:
            run = _taken(arguments, plan, graph)
            return cls(plan, *chosen, memory, None, "", run, verbose=verbose(arguments.verbose))
        choice = choice_of(arguments)
        watch("simulate")
        step = simulate_step(
            plan,
            compiled,
            choice.cluster,
            choice.text,
            batches=choice.batches,
            optimizer=arguments.optimizer,
        )
        on = f" on {choice.cluster}, {batches_of(choice.batches)}"
        run = _taken(arguments, plan, graph)
        return cls(plan, *chosen, memory, step, on, run, choice.batches, verbose(arguments.verbose))

    @property
    def exit(self) -> int:
        """Of the command: a plan that does not fit on the cluster is shown all the same."""
        from ..report.memory import status_of

        return 0 if self.step is None else status_of(self.step)

    def table(self, model: str) -> Iterator[str]:
        from .answer import tables, wrapped
        from .table import few, lines_of_moves, lines_of_parameters, lines_of_table

        yield from self.answer(model)
        yield ""
        yield from lines_of_table(self.plan, self.step)
        yield ""
        step = self.step
        busiest = {} if step is None else min(step.ranks, key=lambda rank: rank["idle"])
        yield from tables(self.memory, None if step is None else step.seconds, busiest)
        remarks = [*lines_of_parameters(self.plan), *(() if step is None else lines_of_moves(step))]
        remarks += self.remarks_of_plan(self.verbose, few)
        if remarks:
            yield ""
        yield from map(wrapped, remarks)

    def answer(self, model: str) -> Iterator[str]:
        """What a person wants to know first."""
        from ..report.summary import count_of, time_of
        from .answer import NAMES, line, of_best, of_memory, of_run

        devices = count_of(self.plan.devices, "device")
        yield line("plan", f"{self.plan.name} for {model}{self.on}, {devices}")
        if self.step is not None:
            share = f"{self.step.operations[1]:.1%} of what the devices can compute"
            yield line("step", f"{time_of(self.step.seconds)}, {share}")
        there = None if self.step is None else self.step.memory[self.memory["rank"]][1]
        yield line("memory", of_memory(self.memory, there))
        if self.search is not None and (best := of_best(self.search)) is not None:
            yield line("best", best)
        run = self.run if self.run == WRITTEN_FIRST else of_run(self.run, self.cut_in)
        # To be copied: a path in it may be long.
        yield f"{'run':<{NAMES}}{run}"

    @property
    def cut_in(self) -> int | None:
        """Of a batch that is cut here, how many micro-batches."""
        return self.batches if self.search is not None and self.cut is not None else None

    def text(self, every: bool) -> Iterator[str]:
        yield from (self.plan.text if every else self.plan.folded).splitlines()
        yield from (f"# {line}" for line in self.remarks(verbose=True))

    def remarks(self, verbose: bool, names: Callable[[list[str]], str] = ", ".join) -> Iterator[str]:
        """`names` says how many operators are named in a line; `verbose` is for what the compiler counted."""
        from ..report.memory import lines_of_memory
        from .found import line_of_step

        yield from self.remarks_of_plan(verbose, names)
        there = None if self.step is None else self.step.memory[self.memory["rank"]][1]
        yield from lines_of_memory(self.memory, there)
        if self.step is not None:
            busiest = min(self.step.ranks, key=lambda rank: rank["idle"])
            yield line_of_step(self.step.seconds, busiest, self.step.operations[1])

    def remarks_of_plan(self, verbose: bool, names: Callable[[list[str]], str]) -> Iterator[str]:
        """All but what a step takes."""
        from ..report.computed_work import lines_of_work, work_of
        from .found import NOTHING_TO_DIVIDE, lines_of

        if self.search is not None and self.plan.devices == 1:
            yield NOTHING_TO_DIVIDE
        if self.cut is not None:
            yield self.cut
        if verbose:
            yield from _rewritings(self.plan, names)
        yield from lines_of_work(work_of(self.plan))
        if self.search is not None:
            yield from lines_of(self.search, verbose)

    def numbers(self, model: str) -> dict[str, Any]:
        from .._core import plan_rows
        from .found import numbers_of

        more: dict[str, Any] = {} if self.search is None else {"found": numbers_of(self.search)}
        if self.batches is not None:
            more["micro_batches"] = self.batches
        if self.step is not None:
            more["step"] = {"seconds": self.step.seconds, "utilisation": self.step.operations[1]}
        rows = plan_rows(self.plan, self.step)
        return _numbers(self.plan, model) | {"rows": rows, "memory": self.memory} | more


def _taken(arguments: argparse.Namespace, plan: Plan, graph: Graph) -> str:
    """The plan as `sw.parallelize` takes it, or first how to write it as a file."""
    from .._core import Plan

    if arguments.to:
        return str(arguments.to)
    if Path(arguments.plan).is_file():
        return str(arguments.plan)
    try:
        named = Plan.named(graph, plan.name, plan.devices)
    except ShardwrightError:
        return WRITTEN_FIRST
    return plan.name if named.text == plan.text else WRITTEN_FIRST


def _rewritings(plan: Plan, names: Callable[[list[str]], str]) -> Iterator[str]:
    """Each is `%a, %b (target) along k`."""
    for rewriting in plan.rewritings:
        operators, rest = rewriting.split(" (", 1)
        yield f"rests on the rewriting of {names(operators.split(', '))} ({rest}"


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
    from ..report.computed_work import work_of

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
