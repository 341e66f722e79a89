"""`micro_batches=`: the batch of the example in so many parts, and the proof that these are the batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ._core import Graph, micro_batch_weight
from .capture import Captured
from .capture.evaluate import Evaluator, Given
from .compiling import captured_model
from .errors import RuntimeFault
from .runtime.execution.inputs import Arguments
from .runtime.execution.micro_batches import MicroBatches, rows_of
from .runtime.programs.program import compiling

# The number of rows of one, the inputs that have them by position, and how losses are put together.
Cut = tuple[int, list[int], str]


def of_example(example: Arguments, number: Any, inputs: str) -> tuple[Arguments, Arguments | None]:
    """The first micro-batch of an example, and the first two together, if there are two."""
    tensors = [x for x in pytree.tree_leaves(example) if isinstance(x, Tensor) and x.dim()]
    length = next((x.shape[0] for x in tensors if x.shape[0] > 1), 1)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1 or length % number:
        raise _bad(
            f"micro_batches={number!r} is no number of parts of this batch",
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


def captured_part(
    module: nn.Module, example: Arguments, number: int, capturing: Mapping[str, Any] | None = None
) -> Captured:
    """One of so many parts of an example's batch, proved to be one."""
    one, two = of_example(example, number, "global")
    capturing = capturing or {}
    captured = captured_model(module, *one, **capturing)
    if two is not None:
        proved(module, two, captured.graph_text, capturing)
    return captured


def proved(module: nn.Module, two: Arguments, graph_text: str, capturing: Mapping[str, Any]) -> Cut:
    """Of a program for one micro-batch; `two` are two of them."""
    whole = captured_model(module, *two, **capturing)
    weight, positions, rows = micro_batch_weight(Graph(whole.graph_text), Graph(graph_text))
    return rows, positions, weight


def made(cut: Cut, captured: Captured) -> MicroBatches:
    rows, positions, weight = cut
    count = None
    if weight not in ("sum", "mean"):
        with compiling:
            count = partial(_count, Evaluator(weight), frozenset(positions))
    return MicroBatches(rows, positions, _tensors_of(captured), weight == "sum", count)


def _tensors_of(captured: Captured) -> Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Tensor]]:
    return lambda args, kwargs: captured.in_spec.describe(args, kwargs)[1]


def _count(evaluator: Evaluator, positions: Collection[int], tensors: Sequence[Tensor]) -> float:
    """The graph counts for two: of one twice it is double. It reads nothing but inputs."""
    twice = [torch.cat([x, x]) if at in positions else x for at, x in enumerate(tensors)]
    given = Given(twice, lambda name: twice[0], {}, {}, twice[0].device)
    [found] = evaluator.run(given).outputs
    assert found is not None
    return float(found) / 2


def _bad(what: str, why: str, fix: str) -> RuntimeFault:
    return RuntimeFault("SW0845", what, why=why, fix=fix)
