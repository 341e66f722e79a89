"""`sw.verify`: from a model and a plan to what was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .._core import Graph, Plan
from ..capture.static_inputs.named import KnownInputs, asked_for
from ..errors import RuntimeFault, ShardwrightError
from ..report.memory import OPTIMIZER
from ..runtime import Program, load_program
from ..runtime.execution.inputs import Arguments, arguments_of, call_of
from ..runtime.execution.randomness import NOT_KNOWN
from ..runtime.programs.regions import Region
from ..start.auto_plan import AUTO, Choice, cluster_here, cluster_of
from ..start.compiling import Bundle, captured_model, compile_plan, sources
from ..start.further_programs import skeleton_of
from ..start.micro_batches import Cut, made, of_example, proved
from ..start.outputs import Asked
from ..start.planning import PlanLike, make_plan
from .inside import first_inside, said_of_part
from .judging import Judge, apart, gap_of, norm_of, parts_of
from .order import Order, order_of
from .ranks import Job, Part, Rank, steps_of_ranks
from .result import Comparison, First, Row, named
from .rounding import Spreads
from .step import Batches, Values, step_of_model
from .values import OWN, dtypes_of, in_dtype, require_room, with_values

# Of a plan that is chosen, where nobody says it.
DEVICES = 4
# Of a pipeline whose batch is not cut: in as many all stages are busy, and blocks meet micro-batches again.
PER_BLOCK = 2


def verify(
    module: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    plan: PlanLike = AUTO,
    *,
    devices: int | None = None,
    micro_batches: int = 1,
    dtypes: Sequence[str] = (OWN, "float64"),
    outputs: Asked = "loss",
    seed: int = 0,
    processes: bool = False,
    cluster: str | None = None,
    discover: bool = False,
    known_inputs: KnownInputs = None,
) -> Comparison:
    """Runs a compiled model on local ranks, one step, beside the module on one device, and compares them.

    Compared are the loss, `outputs` that are asked for, every gradient, and every parameter and buffer after
    the step, in each of `dtypes`: `"model"` (those that the module has), `"float64"` and others by name. What
    differs by no more than rounding explains is equal; of what differs by more, the first is named, with the
    model's line. Ranks are threads of this process, or `processes` on Gloo. Random operators draw the same
    numbers on both sides. The other arguments are those of `parallelize`. The module is as before
    afterwards.

    Nothing is raised where values differ: `verify(...).raise_if_different()` does.
    """
    if kwargs is None:
        args, kwargs = arguments_of(args)
    example: Arguments = (tuple(args), dict(kwargs))
    require_room(module)
    module = with_values(module, example)
    capturing = {"discover": discover, "known_inputs": asked_for(known_inputs, "global")}
    asked = _Asked(plan, devices, cluster, micro_batches, outputs, seed, processes, capturing)
    sides, lost = _sides(asked, module, example, dtypes_of(module, example, list(dtypes)))
    comparison = sides[0].comparison()
    comparison.not_compared += lost
    with _explained():
        ranks = steps_of_ranks([side.job() for side in sides], [side.values for side in sides], processes)
    truth: Values | None = None
    for side, of_ranks in zip(sides, ranks, strict=True):
        truth = side.compare(comparison, of_ranks, truth)
    return comparison


@contextmanager
def _explained() -> Iterator[None]:
    """What is drawn for each slice, or in a module that runs as it is, the single device draws otherwise."""
    try:
        yield
    except RuntimeFault as error:
        if error.code != NOT_KNOWN:
            raise
        raise RuntimeFault(
            "SW0884",
            "what the model draws at random cannot be drawn alike on both sides",
            why=f"{error.what}: {error.why}",
            fix="compare it without: in evaluation mode (`model.eval()`), or with dropout rates of 0",
        ) from error


def _sides(
    asked: _Asked, module: nn.Module, example: Arguments, dtypes: Sequence[str]
) -> tuple[list[_Side], list[str]]:
    """The module in each dtype, with its program; and of those that there are none of, why."""
    sides: list[_Side] = []
    errors: list[tuple[str, ShardwrightError]] = []
    for dtype in dtypes:
        try:
            before = sides[0].plan if sides else None
            sides.append(_Side.made(asked, *in_dtype(module, example, dtype), dtype, before))
        except ShardwrightError as error:
            errors.append((dtype, error))
    if not sides:
        raise errors[-1][1]
    return sides, [f"in {named(dtype)}: {error.what}" for dtype, error in errors]


@dataclass(frozen=True)
class _Asked:
    """The arguments of the call."""

    plan: PlanLike
    devices: int | None
    cluster: str | None
    micro_batches: int
    outputs: Asked
    seed: int
    processes: bool
    capturing: Mapping[str, Any]

    def make_plan(self, graph: Graph) -> Plan:
        if self.plan != AUTO:
            return make_plan(graph, self.plan, self.devices)
        devices = self.devices or DEVICES
        name, text = cluster_of(self.cluster or cluster_here("cpu", devices).name)
        return make_plan(graph, AUTO, devices, Choice(name, text, self.micro_batches, OPTIMIZER))


@dataclass
class _Side:
    """The module in one dtype, and its program."""

    asked: _Asked
    module: nn.Module
    example: Arguments
    dtype: str
    plan: Plan
    bundle: Bundle
    program: Program
    split: tuple[int, int, int]
    cut: Cut | None
    values: Mapping[str, Tensor]

    @staticmethod
    def made(asked: _Asked, module: nn.Module, example: Arguments, dtype: str, before: Plan | None) -> _Side:
        one, two = of_example(example, asked.micro_batches, "global")
        captured = captured_model(module, *one, **asked.capturing)
        graph = Graph(captured.graph_text)
        plan = asked.make_plan(graph) if before is None else before.transferred(graph)
        bundle, compiled = compile_plan(captured, plan, outputs=asked.outputs)
        cut = None if two is None else proved(module, two, bundle.graph_text, asked.capturing)
        program = load_program(
            bundle.files, digest=bundle.digest, world=plan.devices, graph=bundle.graph_text
        )
        return _Side(
            asked,
            module,
            example,
            dtype,
            plan,
            bundle,
            program,
            compiled.divided,
            cut,
            sources(module, captured),
        )

    def comparison(self) -> Comparison:
        return Comparison(
            model=type(self.module).__name__,
            plan=self.plan.name,
            devices=self.plan.devices,
            how="processes" if self.asked.processes else "threads",
            step=self._step(),
            split=self.split,
            notes=[*self.bundle.captured.notes, *self._notes()],
            proof=self.bundle.proof,
        )

    def _notes(self) -> list[str]:
        split, _, single = self.split
        apart = split or (single and self.plan.devices > 1) or self.program.blocks > 1
        return ["the plan splits nothing: every rank computes the whole model"] if not apart else []

    def _step(self) -> str:
        losses = "; its loss is one made of all results" if self._by_call() else ""
        number = self._number()
        if self.cut is not None:
            return f"the batch in {number} micro-batches, as one step of SGD{losses}"
        several = f"{number} micro-batches, the others with its first tensor turned round, "
        return f"the example{', ' + several if number > 1 else ' '}as one step of SGD{losses}"

    def _number(self) -> int:
        if self.cut is not None:
            return self.asked.micro_batches
        return PER_BLOCK * self.program.blocks if self.program.blocks > 1 else 1

    def _has_one_loss(self) -> bool:
        results = [x for x in Graph(self.bundle.graph_text).outputs if x is not None]
        return sum(shape == [] for _, shape, _ in results) == 1

    def _by_call(self) -> bool:
        """Whether what leaves is more than one loss, or gradients leave through inputs."""
        wants = any(x.requires_grad for x in pytree.tree_leaves(self.example) if isinstance(x, Tensor))
        more = self.asked.outputs != "loss" or not self._has_one_loss() or wants
        return more and self.program.blocks == 1 and self.cut is None

    def _calls(self) -> list[Arguments]:
        """What ranks are given."""
        return [self.example] if self.cut is not None else turned(self.example, self._number())

    def _batches(self) -> Batches:
        """The same for the model: as a whole, unless it draws numbers for each micro-batch."""
        calls = self._calls()
        if self.cut is None or not self.program.random:
            return Batches(calls, [1 / len(calls)] * len(calls))
        micro = made(self.cut, self.bundle.captured)
        pieces = micro.cut(calls)
        shares = micro.shares([call_of(self.bundle.captured, *piece) for piece in pieces])
        return Batches(pieces, shares)

    def job(self) -> Job:
        captured = self.bundle.captured
        return Job(
            files=self.bundle.files,
            digest=self.bundle.digest,
            graph=self.bundle.graph_text,
            devices=self.plan.devices,
            captured=captured,
            skeleton=skeleton_of(self.module, captured.fixed),
            batches=self._calls(),
            seed=self.asked.seed,
            training=self.module.training,
            cut=self.cut,
            by_call=self._by_call(),
        )

    def compare(self, comparison: Comparison, ranks: Sequence[Rank], truth: Values | None) -> Values | None:
        """Adds to what was found; gives the model's values, if these are the truth for other dtypes."""
        asked, by_call = self.asked, self._by_call()
        names = self.bundle.captured.output_names()
        expected = step_of_model(self.module, self._batches(), asked.seed, names, by_call)
        if asked.outputs != "loss" and not by_call:
            comparison.not_compared.append(
                "outputs besides the loss: under this plan they do not leave a step"
            )
        order = order_of(self.bundle.graph_text)
        spreads = Spreads(Graph(self.bundle.graph_text), order, self.plan.devices + self._number())
        known = None if self.program.random else truth
        outputs = _named(names, order, self._has_one_loss())
        judge = Judge(self.dtype, expected, order, spreads, outputs, known)
        comparison.notes += [] if self.dtype != "float64" or spreads.is_fine else [order.said_of_coarse()]
        rows = judge.rows(ranks)
        comparison.rows += rows
        if comparison.first is None and any(row.state == "differs" for row in rows):
            comparison.first = self._first_inside(order, spreads) or first_of(rows, ranks, order, expected)
        return expected if self.dtype == "float64" and spreads.is_fine else truth

    def _first_inside(self, order: Order, spreads: Spreads) -> First | None:
        one = of_example(self.example, self.asked.micro_batches, "global")[0]
        job = replace(self.job(), batches=[one], cut=None, by_call=False, forward_only=True)
        return first_inside(self.module, self.bundle, self.plan, job, self.values, order, spreads, self.dtype)


def turned(example: Arguments, number: int) -> list[Arguments]:
    """So many that differ: the first tensor is turned round along its last dim."""
    leaves, spec = pytree.tree_flatten(example)
    first = next((at for at, x in enumerate(leaves) if isinstance(x, Tensor) and x.dim()), None)
    examples = []
    for by in range(number):
        if first is None or not by:
            examples.append(example)
            continue
        other = leaves[first].detach().roll(by, -1).requires_grad_(leaves[first].requires_grad)
        examples.append(pytree.tree_unflatten([*leaves[:first], other, *leaves[first + 1 :]], spec))
    return examples


def _named(names: Sequence[str], order: Order, has_loss: bool) -> dict[str, str]:
    """Results of the model by their names in the graph; the loss by that name too."""
    outputs = {name: tensor for name, tensor in zip(names, order.outputs, strict=True) if tensor is not None}
    loss = [tensor for tensor in outputs.values() if order.typed[tensor].numel == 1]
    return {"loss": loss[0], **outputs} if has_loss and loss else outputs


def first_of(rows: Sequence[Row], ranks: Sequence[Rank], order: Order, expected: Values) -> First:
    """Where all that the forward makes is equal: the gradient that backward has first, coming from the loss;
    else what is updated, in the order of the forward."""
    wrong = [row for row in rows if row.state == "differs"]
    row = min(wrong, key=lambda row: (_STAGES[row.kind], _place(row, order)))
    parts = parts_of(ranks, row.kind).get(row.name, [])
    whole = expected.by_kind.get(row.kind, {}).get(row.name)
    gap = None if whole is None else gap_of(whole, parts)
    at = order.first_reader(row.name)
    node = order.nodes[at] if row.kind == "gradient" and at < len(order.nodes) else None
    hint = _HINTS.get(row.kind, "")
    if disagree(parts, row.limit):
        hint = "ranks that hold the same part of it have different values"
        hint += ": no sum over them has come" if row.kind == "gradient" else ""
    return First(
        what=f"the {row.kind} of `{row.name}`" if row.kind == "gradient" else f"the {row.kind} `{row.name}`",
        line=row.line,
        dtype=row.dtype,
        difference=row.difference,
        limit=row.limit,
        ranks=row.ranks,
        part=said_of_part(gap.where if gap else None),
        operator=node.target if node else "",
        path=node.path if node else "",
        hint=row.note or hint,
    )


_ONCE = "run once more, all that the forward makes is equal: what differed has not come again"
_STAGES = {"output": 0, "loss": 1, "gradient": 2, "parameter": 3, "buffer": 3}
_HINTS = {
    "output": _ONCE,
    "loss": _ONCE,
    "gradient": "all that the forward makes is equal, and the gradients that backward has before this one",
    "parameter": "its gradient is equal: look at where the parameter lives and who updates it",
}


def _place(row: Row, order: Order) -> int:
    at = order.first_reader(row.name)
    return -at if row.kind == "gradient" else at


def disagree(parts: Sequence[tuple[int, Part]], limit: float) -> bool:
    """Whether copies of one part are further apart than rounding."""
    first: dict[Region, Tensor] = {}
    values = [(part.region, part.value) for _, part in parts if part.value is not None]
    known = [(first.setdefault(region, value), value) for region, value in values]
    return any(apart(value, one) > 2 * limit * (norm_of(one) or 1.0) for one, value in known)
