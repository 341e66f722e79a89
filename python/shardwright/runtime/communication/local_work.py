"""How long the local code of a step takes while it is recorded: call by call, and perhaps line by line.

A line of the emitted code takes until the next one begins. What autograd computes for it is known by the
sequence numbers of the nodes that it made: each node takes until the next one begins. To look at each line
slows a step down, so its seconds are told by steps that were measured by call.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge, Node

if TYPE_CHECKING:
    from .timed import Clock, Moment

FORWARD, BACKWARD = "forward", "backward"
# Time before the first line, which is around the call.
AROUND = 0

# A call of a program, or its backward.
CallKey = tuple[str, int]


@dataclass
class _Call:
    key: CallKey
    start: Moment
    end: Moment = None
    # The lines that begin, and when.
    marks: list[tuple[int, Moment]] = field(default_factory=list)


class LocalWork:
    """Of one step of a rank."""

    def __init__(self, clock: Clock, *, by_line: bool = False):
        self._clock, self._by_line = clock, by_line
        self._calls: list[_Call] = []
        # Of each call of a micro-batch, from which sequence number on nodes are of which line.
        self._made: dict[tuple[int, int], list[tuple[int, int]]] = {}
        # Of the call that is looked at line by line: its file, its nodes, and what traced before.
        self._file = ""
        self._lines: list[tuple[int, int]] = []
        self._tracing: Any = None

    def begin(
        self,
        direction: str,
        batch: int,
        number: int,
        function: Callable[..., Any] | None,
        edges: Sequence[Any],
    ) -> None:
        """A call of a `function` begins, or the backward from some `edges` of its graph."""
        if self._by_line and direction == BACKWARD:
            self._watch(self._made.get((batch, number), []), edges)
        self._calls.append(_Call((direction, number), self._clock.now()))
        code = getattr(function, "__code__", None)
        if self._by_line and direction == FORWARD and code is not None:
            self._file, self._made[batch, number] = code.co_filename, []
            self._lines = self._made[batch, number]
            self._tracing = sys.gettrace()
            sys.settrace(self._trace)

    def end(self, direction: str) -> None:
        if self._by_line and direction == FORWARD:
            sys.settrace(self._tracing)
        self._calls[-1].end = self._clock.now()

    def seconds(self) -> dict[CallKey, float]:
        """Of each call, in all micro-batches."""
        by_call: dict[CallKey, float] = defaultdict(float)
        for call in self._calls:
            by_call[call.key] += self._clock.seconds(call.start, call.end)
        return dict(by_call)

    def lines(self) -> dict[CallKey, dict[int, float]]:
        """Of each call its lines, if they were looked at."""
        by_call: dict[CallKey, dict[int, float]] = {}
        for call in self._calls:
            if call.marks:
                lines = by_call.setdefault(call.key, defaultdict(float))
                marks = [(AROUND, call.start), *call.marks, (AROUND, call.end)]
                for (line, start), (_, end) in pairwise(marks):
                    lines[line] += self._clock.seconds(start, end)
        return by_call

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Of each function that begins; only those of the program are looked at line by line."""
        return self._of_line if frame.f_code.co_filename == self._file else None

    def _of_line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._mark(frame.f_lineno)
        elif event == "return" and frame.f_back is not None and frame.f_back.f_code.co_filename == self._file:
            self._mark(frame.f_back.f_lineno)
        return self._of_line

    def _mark(self, line: int) -> None:
        self._lines.append((torch.autograd._get_sequence_nr(), line))  # type: ignore[attr-defined]
        self._calls[-1].marks.append((line, self._clock.now()))

    def _watch(self, made: Sequence[tuple[int, int]], edges: Sequence[GradientEdge]) -> None:
        """Nodes of the call's graph say when they begin."""
        if not made:
            return
        seen: set[Node] = set()
        nodes = [edge.node for edge in edges]
        while nodes:
            node = nodes.pop()
            number = node._sequence_nr()
            # Older ones lead to where the call was entered. What adds to gradients has the highest number.
            if node in seen or not made[0][0] <= number < _LAST:
                continue
            seen.add(node)
            line = next(line for first, line in reversed(made) if first <= number)
            node.register_prehook(self._beginning(line))
            nodes += [before for before, _ in node.next_functions if before is not None]

    def _beginning(self, line: int) -> Callable[[Any], None]:
        def begins(_: Any) -> None:
            self._calls[-1].marks.append((line, self._clock.now()))

        return begins


_LAST = 2**62
