"""The tasks of a step, in the order that the programs' timetables say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..programs.program import STASH, Block, Code


@dataclass(frozen=True)
class Begin:
    # The first micro-batch of the program that begins.
    batch: int


@dataclass(frozen=True)
class Forward:
    batch: int
    block: Block


@dataclass(frozen=True)
class Backward:
    batch: int
    block: Block
    # What the gradient of the loss starts from.
    scale: float
    # Whether the gradients of all micro-batches of this block are communicated, and go to the shards.
    last: bool


@dataclass(frozen=True)
class Inputs:
    batch: int
    block: Block
    scale: float


@dataclass(frozen=True)
class Weights:
    batch: int
    block: Block
    last: bool


@dataclass(frozen=True)
class End:
    # The last micro-batch of the program that ends.
    batch: int


Task = Begin | Forward | Backward | Inputs | Weights | End


def code_of(task: Task) -> Callable[..., Any] | None:
    """The emitted code of a block that it runs."""
    match task:
        case Forward():
            return task.block.forward
        case Backward():
            return task.block.backward
        case Inputs():
            return task.block.backward_inputs
        case Weights():
            return task.block.backward_weights
    return None


def tasks(codes: Sequence[Code], scale: float, *, alone: bool, in_turn: bool = False) -> Iterator[Task]:
    """What a rank runs in a step, given the code of each micro-batch.

    Micro-batches under one program follow its timetable. Of several programs the one goes on whose next
    task is of the earliest micro-batch, or one after the other `in_turn`: where ranks run other blocks, they
    would take other turns. Those that run `alone` are each a step of their own.
    """
    lines = [_tasks(codes[batches[0]], batches, scale) for batches in _together(codes, alone)]
    if in_turn:
        yield from itertools.chain.from_iterable(lines)
        return
    heads = [next(line, None) for line in lines]
    while any(heads):
        at = min((head.batch, at) for at, head in enumerate(heads) if head)[1]
        head = heads[at]
        assert head is not None
        yield head
        heads[at] = next(lines[at], None)


def _together(codes: Sequence[Code], alone: bool) -> list[list[int]]:
    """The micro-batches of each step of one program."""
    if alone:
        return [[batch] for batch in range(len(codes))]
    by_code: dict[int, list[int]] = {}
    for batch, code in enumerate(codes):
        by_code.setdefault(id(code), []).append(batch)
    return list(by_code.values())


def _tasks(code: Code, batches: Sequence[int], scale: float) -> Iterator[Task]:
    """`batches` are the numbers in the whole step of what are 0, 1, 2 in the program's; a timetable also says
    what would run before the first and after the last, and names again what has run. The last one ends the
    program's step, whether there is something to do or not."""
    kinds, run = _kinds(code), set()
    for task in code.step(len(batches), scale) if code.step else ():
        if task is code.begin:
            yield Begin(batches[0])
        elif task is not code.end:
            function, batch, *how = task
            if not 0 <= batch < len(batches) or (function, batch) in run:
                continue
            run.add((function, batch))
            kind, block = kinds[function]
            yield kind(batches[batch], block, *how)
    yield End(batches[-1])


def steady_tasks(
    code: Code, batches: int, scale: float, before: tuple[int, float] | None
) -> Iterator[tuple[bool, Task]]:
    """What a rank runs in a step that follows the one before it without a pause: whether it is of that, and
    the task. `before` are its micro-batches and scale; of the first there is nothing."""
    kinds = _kinds(code)
    for task in code.step(batches, scale) if code.step else ():
        if task is code.end or task == STASH:
            continue
        function, batch, *how = task
        kind, block = kinds[function]
        if batch >= 0:
            yield False, kind(batch, block, *how)
        elif before is not None:
            how = [before[1], *how[1:]] if kind is Backward else how
            yield True, kind(before[0] + batch, block, *how)


def _kinds(code: Code) -> dict[Any, tuple[Any, Block]]:
    tasks: dict[Any, tuple[Any, Block]] = {}
    for block in code.blocks:
        tasks[block.forward] = Forward, block
        tasks[block.backward] = Backward, block
        tasks[block.backward_inputs] = Inputs, block
        tasks[block.backward_weights] = Weights, block
    return tasks
