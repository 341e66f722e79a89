"""Rank 0's work: the programs of one model, from the cache or compiled and put there."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from .._core import Graph, Plan
from ..cache import Cache, Comparisons, Entry, Unknown, further_key, key_of, key_of_read
from ..capture import Captured, still_computes
from ..capture.autocast import ambient
from ..capture.static_inputs.buffers import has_values
from ..capture.verify.cost import MOST_AT_A_START
from ..data.padding import Padding
from ..errors import RuntimeFault, ShardwrightError
from ..report.memory import OPTIMIZER
from ..report.progress import Phases, Progress, verbose
from ..report.summary import lines_of, notes_of, notes_of_plan, seconds_of, summary_of
from ..runtime.execution.inputs import Arguments
from ..support.folder_store import open_store
from .auto_plan import AUTO, Choice
from .compiling import Bundle, captured_model, compile_plan
from .micro_batches import best_number
from .planning import PlanLike, make_plan


class Starter:
    """Compiles a model's programs: the first for a plan, further ones under the same plan.

    `devices` are those of one unit, of which there are `units`. `options` is all else that the
    compiler is told, by the names of its arguments, and `capturing` what capture is told. `choice` says for
    what a plan is chosen, if it is, and `padding` what calls are filled up with.
    """

    _done = "compiled"

    def __init__(
        self,
        plan: PlanLike,
        devices: int,
        units: int,
        options: Mapping[str, Any],
        capturing: Mapping[str, Any] | None = None,
        cache: Cache | None = None,
        progress: Progress | None = None,
        choice: Choice | None = None,
        padding: Padding | None = None,
    ):
        self._choice, self._padding = choice, padding
        self._plan, self._devices, self._units = plan, devices, units
        self._options, self._capturing = dict(options), dict(capturing or {})
        self._cache, self._progress = cache, progress or Progress(False)
        self._first: Entry | None = None
        # Of the model and its example; and where the cache has the program, for what is read of that.
        self._key: str | None = None
        self._place: str | None = None
        self._not_kept = ""

    @property
    def _memory(self) -> int | str | None:
        """What each rank has, if that is known: a program that needs more is refused, or not chosen."""
        said: int | str | None = self._options.get("memory")
        return self._choice.memory if said is None and self._choice is not None else said

    @property
    def knows_inputs(self) -> bool:
        """Whether programs may be for what is read of some inputs."""
        return self._capturing.get("known_inputs", ()) != ()

    @property
    def plan_text(self) -> str:
        """Of the plan that the first program was made by."""
        assert self._first is not None, "the first program comes first"
        return self._first.plan_text

    def first(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        folder: str | Path | None = None,
    ) -> Bundle:
        """The program for an example call. `folder` is where the caller writes it, for the summary."""
        name = type(module).__name__
        with self._progress.phases(name) as phases:
            phases.begin("key")
            self._key = self._key_of(module, args, kwargs)
            self._place, self._first = self._kept(self._key, module, args, kwargs)
            if self._first is not None and not self._is_right(phases, self._first, module, args, kwargs):
                self._first = None
            kept = self._first is not None
            if self._first is None:
                self._first = self._compile(
                    phases, module, args, kwargs, None, self._options, self._capturing
                )
                self._keep(phases, self._place, self._first)
        _warn_of_what_is_not_compared(self._first)
        how = (
            f"from the cache, in {phases.total:.1f} s"
            if kept
            else seconds_of(phases.seconds, phases.total, self._done)
        )
        compared = self._first.captured.compared
        took = 0.0 if compared is None else compared.seconds
        self._progress.say(
            *lines_of(
                self._first.summary,
                how + self._not_kept,
                self._where(folder),
                took,
                memory=self._memory,
                verbose=verbose(),
            )
        )
        return _bundle(self._first)

    def further(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        only_loss: bool = False,
        general: bool = False,
    ) -> Bundle:
        """The program for another call or mode of the model, or one of which only the loss leaves. A
        `general` one reads no inputs, if nobody has said which it may read, and there is one."""
        if general and self._capturing.get("known_inputs", ()) is None:
            try:
                return self._further(module, args, kwargs, only_loss, {**self._capturing, "known_inputs": ()})
            except ShardwrightError:
                pass
        return self._further(module, args, kwargs, only_loss, self._capturing)

    def _further(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        only_loss: bool,
        capturing: Mapping[str, Any],
    ) -> Bundle:
        options = {**self._options, "outputs": "loss"} if only_loss else self._options
        assert self._first is not None, "the first program comes first"
        name = type(module).__name__
        with self._progress.phases(name) as phases:
            phases.begin("key")
            key = self._further_key(module, args, kwargs, options, capturing)
            key, entry = self._kept(key, module, args, kwargs)
            kept = entry is not None
            if entry is None:
                plan = self._plan_of_first(Graph(self._first.graph_text))
                entry = self._compile(phases, module, args, kwargs, plan, options, capturing)
                self._keep(phases, key, entry)
        _warn_of_what_is_not_compared(entry)
        how = "from the cache" if kept else "compiled"
        mode = "training" if module.training else "evaluation"
        self._progress.say(
            f"shardwright: {name}, another program for {mode}, {how} in {phases.total:.1f} s",
            *notes_of(entry.summary["notes"]),
            *notes_of_plan(entry.summary["plan_notes"], verbose()),
        )
        return _bundle(entry)

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
        captured = self._captured(phases, module, args, kwargs, capturing)
        phases.begin("plan")
        graph = Graph(captured.graph_text)
        plan, chosen = self._make_plan(graph) if first is None else (first.transferred(graph), None)
        lenient = first is not None
        bundle, compiled = compile_plan(captured, plan, lenient=lenient, watch=phases.begin, **options)
        return Entry(
            files=bundle.files,
            digest=bundle.digest,
            plan=bundle.plan,
            devices=bundle.devices,
            captured=bundle.captured,
            proof=bundle.proof,
            graph_text=bundle.graph_text,
            plan_text=plan.text,
            summary=summary_of(
                type(module).__name__,
                plan,
                compiled,
                captured.notes,
                options.get("optimizer", OPTIMIZER),
                chosen,
                str(captured.compared) if captured.compared else None,
            ),
        )

    def _captured(
        self,
        phases: Phases,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        capturing: Mapping[str, Any],
    ) -> Captured:
        phases.begin("capture")
        captured = captured_model(
            module, args, kwargs, noted=self._comparisons(module, args, kwargs), **capturing
        )
        if self._padding is not None:
            phases.begin("lengths")
            self._padding.prove(module, args, kwargs or {}, captured, capturing)
        return captured

    def _plan_of_first(self, graph: Graph) -> Plan:
        """For the programs of other calls; `graph` is that of the first."""
        assert self._first is not None
        return Plan.parse(graph, self._first.plan_text)

    def _make_plan(self, graph: Graph) -> tuple[Plan, str | None]:
        """And what is expected of it, if it was chosen."""
        chosen = None if self._choice is None else self._choice.search(graph, self._devices)
        unit = make_plan(graph, self._plan if chosen is None else chosen.plan(0), self._devices)
        whole = unit if self._units == 1 else Plan.repeated(graph, unit, self._units)
        return whole, None if chosen is None or self._choice is None else self._choice.says(chosen)

    def _key_of(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str | None:
        if self._cache is None or not isinstance(module, nn.Module):
            return None
        options = {**self._all_options(self._options), "devices": self._devices, "units": self._units}
        if self._choice is not None:
            options["choice"] = repr(self._choice)
        try:
            return key_of(module, args, kwargs, self._plan, options)
        except (Unknown, RecursionError) as error:
            self._not_kept = f" (not kept for the next start: {error})"
            return None

    def _further_key(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        capturing: Mapping[str, Any],
    ) -> str | None:
        if self._cache is None or self._key is None:
            return None
        try:
            return further_key(self._key, module, args, kwargs, {**self._all_options(options), **capturing})
        except (Unknown, RecursionError):
            return None

    def _comparisons(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> Comparisons | None:
        """Of a model that has a key: else something of it is not known from one start to the next."""
        if self._cache is None or self._key is None:
            return None
        return Comparisons(self._cache, module, args, kwargs, self._all_options({}))

    def _all_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        filled = {} if self._padding is None else {"lengths": repr(self._padding)}
        return {**options, **self._capturing, **filled, "autocast": ambient()}

    def _kept(
        self, key: str | None, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> tuple[str | None, Entry | None]:
        """Where the program for a call is, or would be. One that is for what is read of another call leads
        on, by what it reads of this one."""
        while True:
            entry = None if self._cache is None or key is None else self._cache.get(key, module.forward)
            # Values of buffers are no part of a key: those that a model reads in Python are compared here.
            if entry is None or key is None or not has_values(module, entry.captured.fixed):
                return key, None
            if not entry.captured.known_names or entry.captured.is_of(args, kwargs or {}):
                return key, entry
            key = key_of_read(key, entry.captured.describe(args, kwargs or {})[0])

    def _is_right(
        self,
        phases: Phases,
        entry: Entry,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> bool:
        """A key cannot see all that code may read: one forward of the model tells, if it is a short one."""
        compared = entry.captured.compared
        if compared is not None and compared.operations > MOST_AT_A_START:
            return True
        phases.begin("compare")
        if still_computes(module, args, kwargs, entry.captured, entry.graph_text):
            return True
        # Nothing of that key is used, so that further programs are not taken from there either.
        self._key = self._place = None
        self._not_kept = " (not kept for the next start: the model reads something that no key can see)"
        return False

    def _keep(self, phases: Phases, key: str | None, entry: Entry) -> None:
        if self._cache is None or key is None:
            return
        phases.begin("keep")
        try:
            self._cache.put(key, entry)
        except Exception as error:  # a full disk, a constant of an unusual type: it runs all the same
            self._not_kept = f" (not kept for the next start: {error})"

    def _where(self, folder: str | Path | None) -> str:
        if folder is not None:
            return f"in {folder}"
        if self._cache is not None and self._place is not None and self._cache.path(self._place).is_dir():
            return f"in {self._cache.path(self._place) / 'program'}"
        return "in memory (`save_to` writes it to a folder)"


class ChosenNumber:
    """Rank 0's choice of how many micro-batches a step has, which is kept for the next start."""

    def __init__(
        self, choice: Choice, devices: int, capturing: Mapping[str, Any], kept: bool, progress: Progress
    ):
        self._choice, self._devices, self._capturing = choice, devices, capturing
        self._store, self._progress = open_store() if kept else None, progress

    def choose(self, module: nn.Module, example: Arguments) -> int:
        key = self._key_of(module, example)
        files = None if self._store is None or key is None else self._store.files(key)
        if files is not None:
            number: int = json.loads(files["info.json"])["micro_batches"]
            return number
        name = type(module).__name__
        with self._progress.phases(name) as phases:
            number, says = best_number(
                module, example, self._choice, self._devices, self._capturing, phases.begin
            )
        self._progress.say(f"shardwright: {name}, {says}, in {phases.total:.1f} s")
        if self._store is not None and key is not None:
            summary = {"model": f"{name}, how many micro-batches"}
            info = {"summary": summary, "plan": "", "devices": self._devices, "micro_batches": number}
            with contextlib.suppress(OSError):  # it is chosen again next time
                self._store.keep(key, {"info.json": json.dumps(info, indent=1).encode()})
        return number

    def _key_of(self, module: nn.Module, example: Arguments) -> str | None:
        options = {
            **self._capturing,
            "micro_batches": "auto",
            "choice": repr(self._choice),
            "devices": self._devices,
            "autocast": ambient(),
        }
        try:
            return key_of(module, *example, AUTO, options)
        except (Unknown, RecursionError):
            return None


def _warn_of_what_is_not_compared(entry: Entry) -> None:
    """Also where nobody reads a summary."""
    said = entry.captured.not_compared
    if said is not None:
        advice = "compare a smaller copy of it, of fewer layers, or on a machine with more memory"
        warnings.warn(
            f"{said}. What torch.export may have lost of the model is not known: {advice}", stacklevel=4
        )


def units_of(devices: int | None, world: int) -> tuple[int, int]:
    """How many devices a unit has, and how many units there are."""
    unit = world if devices is None else devices
    if unit > 0 and world % unit == 0:
        return unit, world // unit
    fitting = ", ".join(str(size) for size in range(1, world + 1) if world % size == 0)
    running = "1 rank is" if world == 1 else f"{world} ranks are"
    raise RuntimeFault(
        "SW0722",
        f"the program is for {devices} devices, but {running} running",
        why="a plan runs on as many devices, or on a whole number of such units",
        fix=f"start as many ranks as one or several units have (`torchrun --nproc-per-node {max(unit, 1)}`,"
        f" `sw.launch`), leave `devices` out, or give one of {fitting}",
    )


def _bundle(entry: Entry) -> Bundle:
    captured: Captured = replace(entry.captured, graph_text="")
    return Bundle(
        files=entry.files,
        digest=entry.digest,
        plan=entry.plan,
        devices=entry.devices,
        captured=captured,
        proof=entry.proof,
        graph_text=entry.graph_text,
        memory=entry.summary["memory"],
    )
