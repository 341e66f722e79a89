"""`sw.record`: the manifest of communications with what was measured beside what was expected."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._core import communications
from ..errors import RuntimeFault
from ..profiling.origin import require_from_here
from ..runtime import ParallelModule
from ..runtime.agreement.together import together
from ..runtime.communication.local_work import CallKey
from ..runtime.communication.timed import LETTERS, Measured, Notes, clock_of, not_recorded, recorder
from ..runtime.execution.variants import Captured
from ..runtime.programs.program import GRAPH, Program
from ..start.auto_plan import cluster_of
from .memory import OPTIMIZER
from .step_profile import StepProfile, profile_of

# What is said of times, which nobody knows without a cluster.
EXPECTED = ("start_seconds", "expected_seconds", "exposed_seconds", "share_of_link", "overlaps")
# Of these a rank gives as many bytes as the manifest says; of others that is the whole, or the most of any.
ALIKE = ("all_reduce", "reduce_gradients", "reduce_shards", "send", "receive")

Row = dict[str, Any]


class Recorded:
    """What was recorded, once `with sw.record()` is over: the same on all ranks."""

    def __init__(self, cluster: str | None, optimizer: str):
        self._cluster, self._optimizer = cluster, optimizer
        self._model: ParallelModule | None = None
        self._steps: list[Notes] = []
        # Steps that were looked at line by line, which takes longer.
        self._by_line: list[Notes] = []
        self._manifest: dict[str, Any] | None = None
        # While it is set, steps are measured line by line.
        self.by_line = False

    @property
    def manifest(self) -> dict[str, Any]:
        """As `docs/reference/manifest.md` tells it: each rank by itself, each communication as measured."""
        if self._manifest is None:
            raise not_recorded("the recording has not ended", "read it after the `with` block")
        return self._manifest

    def save(self, path: str | Path) -> None:
        """Writes the manifest as JSON: rank 0 does, the others have nothing to do."""
        text = json.dumps(self.manifest, indent=1) + "\n"
        if self._model is not None and self._model.comm.rank == 0:
            try:
                Path(path).write_text(text, encoding="utf-8")
            except OSError as error:
                raise RuntimeFault(
                    "SW0863",
                    f"what was recorded cannot be written to {path}",
                    why=error.strerror or str(error),
                    fix="name a file in a folder that exists and can be written to",
                ) from None

    def profile(self, cluster: str | None = None) -> StepProfile:
        """What was measured beside what is predicted for a cluster, without one for the recording's.

        One rank may ask for it alone.
        """
        manifest, cluster = self.manifest, cluster or self._cluster
        assert self._model is not None
        return profile_of(self._model, self._steps[0].variant, manifest, cluster, self._optimizer)

    # What the model calls.

    def begin(self, model: ParallelModule) -> Notes:
        if self._model is not None and model is not self._model:
            raise not_recorded("steps of two models are in one recording", "record each model by itself")
        if model.program.goes_on:
            raise not_recorded("the plan runs steps without a pipeline flush, so none of them is whole")
        if not model.program.graph:
            why = "the graph of the model is not known here, from which the manifest is made"
            raise not_recorded(why, "make the model by `sw.parallelize`, or keep `graph.txt` in the folder")
        self._model = model
        return Notes(clock_of(model.comm.device), by_line=self.by_line)

    def end(self, notes: Notes) -> None:
        first = next(iter(self._steps + self._by_line), notes)
        if notes.variant is not first.variant or notes.batches != first.batches:
            raise not_recorded(
                "the steps of one recording differ: in the shapes of their batches, or in how many there are",
                "record each kind of step by itself",
            )
        (self._by_line if self.by_line else self._steps).append(notes)

    def refuse_call(self) -> None:
        raise not_recorded("the model is called outside `train_step`, which is not a whole step")

    def match(self) -> None:
        """At the end: beside each row of the manifest what every rank measured. All ranks call this."""
        if self._model is None or not self._steps:
            raise RuntimeFault(
                "SW0862",
                "nothing was recorded",
                why="no `train_step` of a parallel model was called in the `with` block",
                fix="call `model.train_step` there, on all ranks",
            )
        steps = [_Step(notes.seconds(), notes.measured(), notes.work.seconds()) for notes in self._steps]
        mine = _Rank(steps, [notes.work.lines() for notes in self._by_line])
        self._manifest = together(self._model.comm, lambda: mine, self._matched)

    def _matched(self, ranks: list[_Rank]) -> dict[str, Any]:
        manifest = self._expected()
        for role in manifest["roles"]:
            steps = ranks[role["rank"]].steps
            role["measured_step_seconds"] = [step.seconds for step in steps]
            role["computed"] = _computed(ranks[role["rank"]])
            rows = role["communications"]
            for row in rows:
                row["measured"] = {"start_seconds": [], "seconds": [], "waited_seconds": []}
            for step in steps:
                _fill(role["rank"], rows, step.notes)
        return manifest

    def _expected(self) -> dict[str, Any]:
        notes = self._steps[0]
        program, captured = notes.variant.worker.program, notes.variant.captured
        cluster = cluster_of(self._cluster or f"cpu:{program.world}")
        require_from_here(*cluster, notes.variant.worker.comm.device)
        expected = expected_of(program, captured, cluster, notes.batches, self._optimizer)
        if self._cluster is None:
            expected["cluster"] = expected["step_seconds"] = None
            for row in (row for role in expected["roles"] for row in role["communications"]):
                for key in EXPECTED:
                    row.pop(key)
        return expected


def expected_of(
    program: Program, captured: Captured, cluster: tuple[str, str | None], batches: int, optimizer: str
) -> dict[str, Any]:
    """The manifest of a program that runs, with what is expected of it on a cluster."""
    files = {name: text for name, text in program.files.items() if name != GRAPH}
    kept = {name: str(dtype) for name, dtype in captured.kept.items()}
    manifest: dict[str, Any] = json.loads(
        communications(program.graph, files, cluster, batches, optimizer, kept)
    )
    return manifest


@dataclass
class _Step:
    """What one rank has measured."""

    seconds: float
    notes: list[Measured]
    calls: dict[CallKey, float]


@dataclass
class _Rank:
    steps: list[_Step]
    # Of those that were looked at line by line.
    lines: list[dict[CallKey, dict[int, float]]]


@contextmanager
def record(cluster: str | None = None, optimizer: str = OPTIMIZER) -> Iterator[Recorded]:
    """Measures what all ranks communicate in the steps (`train_step`) of a `with` block.

    All ranks record together. Afterwards it has the manifest of communications, with what each took on each
    rank; and with a `cluster` (a name, or its file) also what was expected, given the `optimizer` that comes
    after it. What is not in the manifest is an error, and so is what it lists and did not happen.
    """
    if recorder.get() is not None:
        raise not_recorded("this rank is recording already", "end one recording before the next begins")
    recorded = Recorded(cluster, optimizer)
    token = recorder.set(recorded)
    try:
        yield recorded
    finally:
        recorder.reset(token)
    recorded.match()


def _computed(rank: _Rank) -> list[Row]:
    """The calls of a rank's local code, each with the seconds of its lines if they are known."""
    rows = []
    for key in sorted({key for step in rank.steps for key in step.calls}):
        lines: dict[int, float] = {}
        for step in rank.lines:
            for line, seconds in step.get(key, {}).items():
                lines[line] = lines.get(line, 0.0) + seconds / len(rank.lines)
        seconds_of_steps = [step.calls.get(key, 0.0) for step in rank.steps]
        measured = {"seconds": seconds_of_steps, "lines": [[line, lines[line]] for line in sorted(lines)]}
        rows.append({"pass": key[0], "call": key[1], **measured})
    return rows


def _fill(rank: int, rows: Sequence[Row], notes: Sequence[Measured]) -> None:
    """Both are in the order in which the rank comes to them."""
    rows = _in_one_order(rows, lambda row: _letter_of(row), lambda row: row["group"])
    notes = _in_one_order(notes, lambda note: note.message, lambda note: list(note.group))
    for at, (row, note) in enumerate(zip(rows, notes, strict=False)):
        if not _is(row, note):
            raise _other(rank, at, _of_row(row), _of_note(note))
        measured = row["measured"]
        measured["start_seconds"].append(note.start)
        measured["seconds"].append(note.seconds)
        measured["waited_seconds"].append(note.waited)
    if len(rows) != len(notes):
        at = min(len(rows), len(notes))
        listed = _of_row(rows[at]) if at < len(rows) else "nothing more"
        raise _other(rank, at, listed, _of_note(notes[at]) if at < len(notes) else "nothing more")


def _letter_of(row: Row) -> Any:
    """What names an instruction that sends or receives several messages."""
    if row["kind"] not in LETTERS:
        return None
    return row["kind"], row["pass"], row["block"], row["micro_batch"], row["instruction"]


def _in_one_order(all_: Sequence[Any], letter: Any, group: Any) -> list[Any]:
    """Messages of one instruction by who sends and who receives them; all else as it is."""
    ordered: list[Any] = []
    together: list[Any] = []
    for one in all_:
        if together and (letter(one) is None or letter(one) != letter(together[0])):
            ordered += sorted(together, key=group)
            together = []
        if letter(one) is None:
            ordered.append(one)
        else:
            together.append(one)
    return ordered + sorted(together, key=group)


def _is(row: Row, note: Measured) -> bool:
    if row["kind"] != note.kind or sorted(row["group"]) != sorted(note.group):
        return False
    if note.message is not None and note.message[1] != row["micro_batch"]:
        return False
    if row["bytes_expected"]:
        return True
    return bool(row["bytes"] == note.size if note.kind in ALIKE else row["bytes"] >= note.size)


def _of_row(row: Row) -> str:
    where = f"in {row['pass']} {row['block']} of micro-batch {row['micro_batch']}"
    return f"{row['kind']} of {row['bytes']} bytes among {row['group']} {where}"


def _of_note(note: Measured) -> str:
    return f"{note.kind} of {note.size} bytes among {list(note.group)}"


def _other(rank: int, at: int, listed: str, observed: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0860",
        f"rank {rank} does not communicate what the manifest lists",
        why=f"its communication number {at}, counted from 0, is {observed}; listed is {listed}",
        fix="leave hooks of parameters and a `reduce` dtype of your own out of what is recorded: the manifest"
        " knows neither; else this is a bug, please report it",
    )
