"""`micro_batches=`: the batch of the example in so many parts, and the proof that these are the batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .._core import Graph, micro_batch_weight
from ..capture import Captured
from ..capture.verify.interpreter import Evaluator, Given
from ..errors import PlanError, RuntimeFault
from ..runtime.execution.inputs import Arguments
from ..runtime.execution.micro_batches import MicroBatches, rows_of
from .auto_plan import Choice
from .compiling import captured_model
from .micro_batch_search import Cutting

# The number of rows of one, the inputs that have them by position, and how losses are put together.
Cut = tuple[int, list[int], str]


def of_example(example: Arguments, number: Any, inputs: str) -> tuple[Arguments, Arguments | None]:
    """The first micro-batch of an example, and the first two together, if there are two."""
    tensors, length = _tensors_and_rows(example)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1 or length % number:
        raise _bad(
            f"micro_batches={number!r} does not cut this batch evenly",
            f"the first dim of its first tensor has {length} rows, and all parts have as many",
            f"give one of {', '.join(str(n) for n in range(1, length + 1) if length % n == 0)}",
        )
    if number > 1 and inputs == "local":
        raise _bad(
            'micro_batches= cuts batches with inputs="global" only',
            "a rank that is given its own part of a batch cannot cut the whole",
            "give a list of micro-batches to `train_step`",
        )
    cut = {id(x) for x in tensors if x.shape[0] == length} if number > 1 else set()
    rows = length // number
    return rows_of(example, cut, 0, rows), rows_of(example, cut, 0, 2 * rows) if number > 1 else None


def rows_of_example(example: Arguments) -> int:
    """How many rows its batch has."""
    return _tensors_and_rows(example)[1]


def _tensors_and_rows(example: Arguments) -> tuple[list[Tensor], int]:
    tensors = [x for x in pytree.tree_leaves(example) if isinstance(x, Tensor) and x.dim()]
    return tensors, next((x.shape[0] for x in tensors if x.shape[0] > 1), 1)


class Parts:
    """The batch of an example in micro-batches of several sizes, each of which is captured once."""

    def __init__(self, module: nn.Module, example: Arguments, capturing: Mapping[str, Any] | None = None):
        self._module, self._example, self._capturing = module, example, capturing or {}
        self._known: dict[tuple[int, bool], Captured] = {}
        self.rows = rows_of_example(example)

    def captured(self, number: int) -> Captured:
        """One of so many parts of the batch, proved to be one."""
        one, two = of_example(self._example, number, "global")
        captured = self._of_rows(one, self.rows // number, number)
        if two is not None:
            weight_of(self._of_rows(two, 2 * self.rows // number, number), captured.graph_text)
        return captured

    def _of_rows(self, example: Arguments, rows: int, number: int) -> Captured:
        key = rows, number > 1
        if key not in self._known:
            capturing = of_parts(self._capturing, number)
            self._known[key] = captured_model(self._module, *example, **capturing)
        return self._known[key]


def of_parts(capturing: Mapping[str, Any], number: int) -> dict[str, Any]:
    """What capture is told where a batch is cut into so many parts: of a part other values are read than of
    the whole, so that none are unless somebody says so."""
    unnamed = number > 1 and capturing.get("known_inputs") is None
    return {**capturing, "known_inputs": ()} if unnamed else dict(capturing)


def proved(module: nn.Module, two: Arguments, graph_text: str, capturing: Mapping[str, Any]) -> Cut:
    """Of a program for one micro-batch; `two` are two of them."""
    return weight_of(captured_model(module, *two, **capturing), graph_text)


def best_number(
    module: nn.Module,
    example: Arguments,
    choice: Choice,
    devices: int,
    capturing: Mapping[str, Any],
    watch: Callable[[str], object],
) -> tuple[int, str]:
    """Of which a step takes least, and what is said of that."""
    parts = Parts(module, example, capturing)

    def graph_of(number: int) -> Graph:
        return Graph(parts.captured(number).graph_text)

    cut = Cutting(parts.rows, devices, choice, graph_of, watch).best()
    return cut.parts, cut.says


def weight_of(two: Captured, graph_text: str) -> Cut:
    weight, positions, rows = micro_batch_weight(Graph(two.graph_text), Graph(graph_text))
    names = two.in_spec.input_names()
    if read := [names[at] for at in positions if names[at] in two.known_names]:
        raise PlanError(
            "SW0361",
            "an input that is known is cut into micro-batches",
            why=f"it reads values of `{read[0]}` in Python, and from a part it may read something else",
            fix="set `micro_batches` to 1, or give `train_step` a list of batches: it takes the mean of their"
            " losses",
        )
    return rows, positions, weight


def made(cut: Cut, captured: Captured) -> MicroBatches:
    rows, positions, weight = cut
    count = None
    if weight not in ("sum", "mean"):
        count = partial(_count, Evaluator(weight), frozenset(positions))
    return MicroBatches(rows, positions, _tensors_of(captured), weight == "sum", count)


def _tensors_of(captured: Captured) -> Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Tensor]]:
    return lambda args, kwargs: captured.in_spec.describe(args, kwargs)[1]


def _count(evaluator: Evaluator, positions: Collection[int], tensors: Sequence[Tensor]) -> Tensor:
    """The graph counts for two: of one twice it is double. It reads nothing but inputs."""
    twice = [torch.cat([x, x]) if at in positions else x for at, x in enumerate(tensors)]
    given = Given(twice, lambda name: twice[0], {}, {}, twice[0].device)
    [counted] = evaluator.run(given).outputs
    assert counted is not None
    return counted.double() / 2


def refuse_unchosen(chooses: bool, inputs: str) -> None:
    """Of `micro_batches="auto"`."""
    if not chooses:
        raise _bad(
            'micro_batches="auto" is for plan="auto"',
            "the best number is found together with the plan",
            "give a number, or leave out the plan",
        )
    if inputs == "local":
        raise _bad(
            'micro_batches="auto" is for inputs="global" only',
            "a rank that is given its own part of a batch cannot cut the whole",
            "give a list of micro-batches to `train_step`",
        )


def _bad(what: str, why: str, fix: str) -> RuntimeFault:
    return RuntimeFault("SW0845", what, why=why, fix=fix)
