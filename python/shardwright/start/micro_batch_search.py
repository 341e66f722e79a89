"""Into how many micro-batches a batch is cut where nobody says that, and the plan that is chosen for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from .._core import Found, Graph
from ..errors import PlanError, ShardwrightError
from ..report.summary import batches_of
from .auto_plan import Choice

# A step has at most so many where nobody says how many.
MOST = 64
# After so many in a row that are not better none is looked at that lies beyond.
ENOUGH = 2


def parts_of(rows: int) -> list[int]:
    """Into how many parts a batch may be cut: each number is at least twice the one before."""
    numbers = [1]
    for parts in range(2, min(rows, MOST) + 1):
        if rows % parts == 0 and parts >= 2 * numbers[-1]:
            numbers.append(parts)
    return numbers


@dataclass(frozen=True)
class Cut:
    parts: int
    graph: Graph
    """Of one of them."""
    search: Found
    says: str


class Cutting:
    """Looks for the best number of micro-batches, from one to the next until they get no better.

    It begins with the most with which each device still has a row, and goes on to more of them while none
    fits. `graph_of` gives the graph of one of so many, and refuses where the batch cannot be cut.
    """

    def __init__(
        self,
        rows: int,
        devices: int,
        choice: Choice,
        graph_of: Callable[[int], Graph],
        watch: Callable[[str], object],
    ):
        self._rows, self._devices, self._choice = rows, devices, choice
        self._graph_of, self._watch = graph_of, watch
        self._start = time.perf_counter()
        self._graphs: dict[int, Graph] = {}
        self._found: dict[int, Found] = {}
        self._seconds: dict[int, float] = {}
        self._uncut = ""
        self._clash: PlanError | None = None

    def best(self) -> Cut:
        parts = parts_of(self._rows)
        fed = [at for at, number in enumerate(parts) if self._rows // number >= self._devices]
        at = max(fed, default=0)
        if not self._can_be_cut(parts[at]):
            parts, at = [1], 0
        last = len(parts) - 1
        while self._takes(parts[at]) == math.inf and at < last:
            at += 1
        for beyond in (range(at + 1, len(parts)), range(at - 1, -1, -1)):
            worse = 0
            for other in beyond:
                if self._takes(parts[other]) < self._takes(parts[at]):
                    at, worse = other, 0
                else:
                    worse += 1
                if worse == ENOUGH:
                    break
        return self._fewest() if self._takes(parts[at]) == math.inf else self._cut(parts[at])

    def _cut(self, parts: int) -> Cut:
        return Cut(parts, self._graphs[parts], self._found[parts], self._says(parts))

    def _fewest(self) -> Cut:
        """Where nothing fits: that is said of as many as need least."""
        if self._clash is not None:
            raise self._clash
        parts = max(self._graphs)
        candidates = self._with(parts).search(self._graphs[parts], self._devices, watch=self._watch)
        self._found[parts] = candidates
        return self._cut(parts)

    def _with(self, parts: int) -> Choice:
        choice = replace(self._choice, batches=parts)
        if choice.deadline is None or not self._found:
            return choice
        return replace(choice, deadline=max(choice.deadline - time.perf_counter() + self._start, 0.0))

    def _can_be_cut(self, parts: int) -> bool:
        if parts in self._graphs:
            return True
        try:
            self._graphs[parts] = self._graph_of(parts)
        except ShardwrightError as error:
            if parts == 1:
                raise
            self._uncut = f"in {parts} parts it cannot be cut: {error.what}"
            return False
        return True

    def _takes(self, parts: int) -> float:
        """Seconds of the quickest plan that fits, if they are less than of any that is known."""
        if parts not in self._seconds:
            self._seconds[parts] = self._look(parts, min(self._seconds.values(), default=math.inf))
        return self._seconds[parts]

    def _look(self, parts: int, below: float) -> float:
        choice = self._with(parts)
        is_late = choice.deadline == 0.0 and below < math.inf
        if is_late or not self._can_be_cut(parts):
            return math.inf
        self._watch(batches_of(parts))
        known = None if below == math.inf else below
        try:
            candidates = choice.search(
                self._graphs[parts], self._devices, every=True, wanted=1, below=known, watch=self._watch
            )
        except PlanError as error:
            # A line that cannot be read has a place, constraints that clash have several.
            if error.place is not None:
                raise
            self._clash = error
            return math.inf
        self._found[parts] = candidates
        return min((row["seconds"] for row in candidates.rows if row["fits"]), default=math.inf)

    def _says(self, best: int) -> str:
        said = f"the batch of {self._rows} in {best} micro-batches of {self._rows // best}"
        others = sorted({*self._found} - {best})
        if others:
            few, last = ", ".join(map(str, others[:-1])), str(others[-1])
            with_others = f"{few} or {last}" if few else last
            said += f": with {with_others} no quicker plan was found"
        return said + (f"; {self._uncut}" if self._uncut else "")
