"""Rules for what runs as it is, put into a captured graph."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .._core import Graph
from ..as_python import Marked, mark_of
from ..capture import Captured, operands
from ..capture.opaque.modules import Divided, notes_of
from .calls import Call, calls_without_rule
from .finding import Finding
from .stating import compared, refuse_unfit

Given = tuple[int, str, list[tuple[str, int]], str | None, bool, str | None]


def divide(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    captured: Captured,
    device: str | None = None,
    discover: bool = False,
) -> None:
    """Gives rules to the operators of the graph that somebody stated them for; with `discover` also to
    others, for which they are found."""
    if not discover and not _states_any(module):
        return
    graph = Graph(captured.graph_text)
    wanted = [*calls_without_rule(graph)]
    if not wanted:
        return
    with operands(module, args, kwargs, captured, set(wanted), device) as known:
        if isinstance(known, str):
            captured.notes.append(f"no rules were looked for, for what runs as it is: {known}")
            return
        model, given = known
        calls = [Call.from_model(at, given[at], model) for at in wanted]
        rules = _Rules(module, captured, graph)
        for call in calls:
            if call.is_module and (mark := mark_of(call.function)) is not None and mark.rule is not None:
                rules.state(call, mark)
        finding = Finding()
        for call in calls if discover else []:
            if call.name not in rules.said or not rules.said[call.name].stated:
                rules.find(call, finding)
    rules.put()


@dataclass
class _Rules:
    module: nn.Module
    captured: Captured
    graph: Graph
    given: list[Given] = field(default_factory=list)
    said: dict[str, Divided] = field(default_factory=dict)

    def state(self, call: Call, mark: Marked) -> None:
        assert mark.rule is not None
        refuse_unfit(call, mark)
        sizes = dict(mark.sizes)
        text, sizes_by_name = call.without_sizes(sizes, mark.place)
        given: Given = (call.at, mark.rule, sizes_by_name, text, False, mark.place)
        # It is compared in few elements, as the graph with the rule tells.
        ruled = Graph(self.graph.ruled([given]))
        why = compared(call, mark, ruled.operators[call.at], self.module)
        if why is not None:
            said = f"the rule of `{call.name}` was not compared: {why}"
            warnings.warn(f"{said}. It is not known whether its shards give the whole", stacklevel=6)
            self.captured.notes.append(said)
        self.given.append(given)
        self.said[call.name] = Divided(mark.rule, True)

    def find(self, call: Call, finding: Finding) -> None:
        finding_of_call = finding.rule_for(call)
        if finding_of_call.rule is None:
            self.said.setdefault(call.name, Divided(None, False, why=finding_of_call.why))
            return
        text, sizes_by_name = call.without_sizes(finding_of_call.sizes, "")
        self.given.append((call.at, finding_of_call.rule, sizes_by_name, text, True, None))
        self.said[call.name] = Divided(
            finding_of_call.rule, False, finding_of_call.tried, sizes=finding_of_call.sizes
        )

    def put(self) -> None:
        captured = self.captured
        if self.given:
            captured.graph_text = self.graph.ruled(self.given)
        before = notes_of(self.module, captured.as_python, {})
        others = [note for note in captured.notes if note not in before]
        functions = {name: ("", 0.0) for name in self.said if name not in captured.as_python}
        functions_of_python = {**captured.as_python, **functions}
        captured.notes = [*notes_of(self.module, functions_of_python, self.said), *others]


def _states_any(module: nn.Module) -> bool:
    marks = (mark_of(part) for part in module.modules())
    return any(mark is not None and mark.rule is not None for mark in marks)
