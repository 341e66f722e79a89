"""`program=`: a program that stands in a folder, perhaps edited, in the place of one that a plan gives.

It is proved against the model's graph before anything of it runs, in the same way as one that was just made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from .._core import Compiled, Graph, Plan, read_program
from ..cache import Entry
from ..capture import Captured
from ..errors import RuntimeFault
from ..report.memory import OPTIMIZER
from ..report.progress import Phases
from ..report.summary import summary_of_program
from ..runtime.programs.program import GRAPH, TABLES, load_program, read_folder
from .compiling import without_graph
from .outputs import resolve
from .starter import Starter

PLAN = "program.plan"
"""The plan's file beside the program that was made by it: for other calls of the model."""
MADE_OF = "model.json"
"""What `shardwright emit` was told of the model, for `shardwright run`."""

# Arguments of `parallelize` that say what a program is to be; a folder says that itself.
_OF_A_PLAN = ("plan", "devices", "cluster", "constraints", "save_to")
# As many lines of two graphs show what differs.
_SHOWN = 4


@dataclass(frozen=True)
class Edited:
    """The texts of a folder, and what its tables say."""

    folder: str
    files: dict[str, str]
    graph_text: str
    plan_text: str | None
    plan: str
    world: int
    digest: str

    @staticmethod
    def read(folder: str | Path, world: int | None = None) -> Edited:
        """Refuses what is of another version, or for another number of ranks."""
        path = Path(folder)
        files = read_folder(path)
        graph_text = files.pop(GRAPH, "")
        program = load_program(files, world=world)
        plan_file = path / PLAN
        plan_text = plan_file.read_text(encoding="utf-8") if plan_file.is_file() else None
        return Edited(str(folder), files, graph_text, plan_text, program.plan, program.world, program.digest)

    def proved(
        self,
        captured: Captured,
        watch: Callable[[str], object],
        options: Mapping[str, Any],
    ) -> Compiled:
        """Against the graph of a model. `options` are those of `compile_plan`."""
        graph = Graph(captured.graph_text)
        self._require_same_graph(graph)
        memory, optimizer = options.get("memory"), options.get("optimizer", OPTIMIZER)
        return read_program(
            graph,
            self.files,
            resolve(options.get("outputs", "loss"), captured, graph),
            watch,
            options.get("inputs", "global"),
            None if memory is None else (memory, optimizer),
            {name: str(dtype) for name, dtype in captured.kept.items()},
        )

    def _require_same_graph(self, graph: Graph) -> None:
        if graph.digest == self.digest:
            return
        theirs, ours = self.graph_text.splitlines(), graph.text.splitlines()
        changes = (line for line in unified_diff(theirs, ours, n=0, lineterm="") if line[:2] != "@@")
        first = list(islice(changes, 2, 2 + _SHOWN)) if theirs else []
        shown = f": {' | '.join(first)}" if first else ""
        raise RuntimeFault(
            "SW0893",
            f"the program in {self.folder} was made for another model, or for inputs of other shapes",
            place=str(Path(self.folder, TABLES)),
            why=f"its graph has the digest {self.digest[:12]}, the model's is {graph.digest[:12]}{shown}",
            fix="give the model, the example, the number of micro-batches and the precision that it was"
            " emitted with, or emit it again",
        )


class EditedStarter(Starter):
    """Rank 0's work with such a program. The next start proves it again: its text may have changed."""

    _done = "read and proved"

    def __init__(self, edited: Edited, *rest: Any):
        super().__init__(edited.plan, edited.world, 1, *rest)
        self._edited = edited

    def _key_of(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str | None:
        return None

    def _compile(
        self,
        phases: Phases,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        first: Plan | None,
        options: Mapping[str, Any],
        capturing: Mapping[str, Any],
    ) -> Entry:
        if first is not None:
            return super()._compile(phases, module, args, kwargs, first, options, capturing)
        captured = self._captured(phases, module, args, kwargs, capturing)
        compiled = self._edited.proved(captured, phases.begin, options)
        compared = str(captured.compared) if captured.compared else None
        optimizer = options.get("optimizer", OPTIMIZER)
        return Entry(
            files=dict(compiled.files),
            digest=compiled.digest,
            plan=self._edited.plan,
            devices=self._edited.world,
            captured=without_graph(captured),
            proof=compiled.proof,
            graph_text=captured.graph_text,
            plan_text=self._edited.plan_text or "",
            summary=summary_of_program(
                type(module).__name__,
                (self._edited.plan, self._edited.world),
                compiled,
                captured.notes,
                optimizer,
                compared,
            ),
        )

    def _plan_of_first(self, graph: Graph) -> Plan:
        """Other calls of the model get programs of the plan that this one was made by. They are proved as
        well, and have no edits."""
        if self._edited.plan_text is None:
            raise RuntimeFault(
                "SW0894",
                "the program is for calls like the example, in this mode, and this call is another",
                place=self._edited.folder,
                why=f"the folder has no {PLAN}, by which a program for other calls could be made",
                fix="emit the program again, which writes that file, or call the model as in the example",
            )
        return Plan.parse(graph, self._edited.plan_text)

    def _where(self, folder: str | Path | None) -> str:
        return f"in {self._edited.folder}"


def refuse_with_program(given: Mapping[str, Any]) -> None:
    """`given` are these arguments of `parallelize`; `None` are those that nobody named."""
    clashing = [name for name in _OF_A_PLAN if given.get(name) is not None]
    if given.get("micro_batches") == "auto":
        clashing.append('micro_batches="auto"')
    if not clashing:
        return
    raise RuntimeFault(
        "SW0890",
        f"`program` is given together with {', '.join(f'`{name}`' for name in clashing)}",
        why="a program is for its own plan, number of ranks and micro-batches, and nothing of it is chosen",
        fix="leave out the others, or `program`",
    )


def made_of(folder: str | Path) -> dict[str, Any] | None:
    """What `shardwright emit` was told of the model, if it wrote the folder."""
    path = Path(folder, MADE_OF)
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return noted if isinstance(noted, dict) and isinstance(noted.get("model"), str) else None
