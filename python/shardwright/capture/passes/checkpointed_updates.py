"""Buffers that a model updates under `torch.utils.checkpoint`.

PyTorch runs what stands under a checkpoint once more in backward, and its updates with it: running statistics
move twice. Here the graph's updates are made twice, of the same batch, in the order in which backward runs
checkpoints again: from the last to the first, and those inside of one after it. What cannot be made so is
refused, and what is made so is compared with the model's own backward.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from ...errors import CaptureError
from .. import lines
from ..checkpointed_regions import SPANS, cannot_repeat, spans_of
from ..fx_nodes import insert, is_getitem, is_no_grad, is_view, mark_no_grad, mutated
from ..lines import module_of, said_in
from ..random.draws import draws

_ATEN = torch.ops.aten
_NORM = _ATEN._native_batch_norm_legit_functional.default
# Its schema does not say that it writes its statistics.
_WRITES_STATISTICS = ("aten.batch_norm.", "aten.instance_norm.")
_STATISTICS = {3: 3, 4: 4}
_MOMENTUM = 6


def writes_under_checkpoints(program: ExportedProgram) -> str | None:
    """The model's first line that writes a buffer or parameter under a checkpoint, before operators are made
    functional; empty where it is not known."""
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    held = (InputKind.BUFFER, InputKind.PARAMETER)
    lies_in = {node for node in program.graph.find_nodes(op="placeholder") if kinds[node.name] in held}
    for node in program.graph.nodes:
        reads = lies_in.intersection(node.all_input_nodes)
        if not reads:
            continue
        is_written = str(node.target).startswith(_WRITES_STATISTICS) or reads.intersection(mutated(node))
        if is_written and spans_of(node):
            return node.stack_trace or ""
        if mutated(node) or is_view(node):
            lies_in.add(node)
    return None


@dataclass(frozen=True)
class RepeatedUpdates:
    are_repeated: bool
    """Whether there is a buffer that backward updates again."""
    are_sure: bool
    """Whether that is right without looking at what backward does."""


def repeat_updates(program: ExportedProgram, trained: Collection[str]) -> RepeatedUpdates:
    """Updates once more what backward updates again. `trained` are the parameters and the placeholders that
    get a gradient."""
    updates = _Updates.from_program(program)
    learning = _Learning.from_program(program, trained)
    recomputed = [span for span in updates.spans() if learning.is_recomputed(span, updates)]
    updates.refuse_what_would_differ(learning, recomputed)
    are_sure = updates.are_sure()
    for span in reversed(recomputed):
        updates.repeat(span, 0)
    return RepeatedUpdates(updates.write_back(), are_sure)


# ---- which checkpoints backward runs again ----------------------------------------------------


@dataclass
class _Learning:
    """What has a gradient, and to which results it leads."""

    carries: set[fx.Node]
    leads: list[set[fx.Node]]
    """For each result of which a loss may be made, what it is made of with a gradient."""
    others: set[fx.Node]
    """The same for all other results together."""

    @classmethod
    def from_program(cls, program: ExportedProgram, trained: Collection[str]) -> _Learning:
        carries = _carrying(program, trained)
        nodes = {node.name: node for node in program.graph.nodes}
        specs = program.graph_signature.output_specs
        users = [spec.arg for spec in specs if spec.kind is OutputKind.USER_OUTPUT]
        results = [nodes[arg.name] for arg in users if isinstance(arg, TensorArgument)]
        results = [node for node in results if node in carries]
        losses = [node for node in results if node.meta["val"].dim() == 0] or results
        others = [node for node in results if node not in losses]
        return cls(carries, [_made_of(node, carries) for node in losses], _made_of_any(others, carries))

    @property
    def matters(self) -> set[fx.Node]:
        return self.others.union(*self.leads)

    def is_recomputed(self, span: int, updates: _Updates) -> bool:
        """Whether a loss leads back to it."""
        carried = {node for node in self.carries if span in spans_of(node)[:1]}
        meets = [bool(carried & made_of) for made_of in self.leads]
        if meets and all(meets):
            return True
        if not updates.has(span):
            return any(meets)
        if any(meets) or carried & self.others:
            why = "only some results lead back to it, so the loss decides whether it runs again"
            raise updates.refusal(span, why)
        return False


def _carrying(program: ExportedProgram, trained: Collection[str]) -> set[fx.Node]:
    names = program.graph_signature.inputs_to_parameters
    carrying: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            is_source = names.get(node.name, node.name) in trained
        else:
            cut = is_no_grad(node) or node.target is _ATEN.detach.default
            is_source = not cut and _may_learn(node) and bool(carrying.intersection(_learning(node)))
        carrying.update([node] if is_source else [])
    return carrying


def _may_learn(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return any(v.is_floating_point() or v.is_complex() for v in values if isinstance(v, Tensor))


def _made_of(result: fx.Node, carries: set[fx.Node]) -> set[fx.Node]:
    return _made_of_any([result], carries)


def _made_of_any(results: Iterable[fx.Node], carries: set[fx.Node]) -> set[fx.Node]:
    made_of: set[fx.Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node in carries and node not in made_of:
            made_of.add(node)
            waiting += _learning(node)
    return made_of


def _learning(node: fx.Node) -> list[fx.Node]:
    """What may get a gradient of it: of a batch norm not the statistics."""
    given = node.args[:3] if node.target is _NORM else node.all_input_nodes
    return [read for read in given if isinstance(read, fx.Node)]


# ---- how buffers are updated --------------------------------------------------------------------


@dataclass
class _Updates:
    """The buffers that a forward updates, and what lies between their old and new values."""

    program: ExportedProgram
    held: dict[str, fx.Node]
    last: dict[str, fx.Node]
    """The new value of each, as the forward makes it."""
    touched: dict[fx.Node, frozenset[str]]
    """Of which of them each node is computed."""
    chain: list[fx.Node]
    """What old and new values are computed of each other by."""
    current: dict[str, fx.Node]
    """The new value of each, with what was run again so far."""

    @classmethod
    def from_program(cls, program: ExportedProgram) -> _Updates:
        signature = program.graph_signature
        nodes = {node.name: node for node in program.graph.nodes}
        outs = [spec for spec in signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION]
        last = {str(spec.target): nodes[spec.arg.name] for spec in outs}
        places = {str(spec.target): nodes[spec.arg.name] for spec in signature.input_specs if spec.target}
        held = {name: places[name] for name in last if name in places}
        touched = _touched(program.graph, held)
        before = _all_before(last.values())
        chain = [n for n in program.graph.nodes if n.op != "placeholder" and touched.get(n) and n in before]
        return cls(program, held, last, touched, chain, dict(last))

    def __post_init__(self) -> None:
        self.chained = set(self.chain)

    def spans(self) -> list[int]:
        """The outermost checkpoints under which buffers are read that the forward updates, in order."""
        nodes = (node for node in self.program.graph.nodes if node in self.touched)
        return list(dict.fromkeys(span for node in nodes for span in spans_of(node)[:1]))

    def has(self, span: int) -> bool:
        """Whether it updates one."""
        return any(span in spans_of(node)[:1] for node in self.chain)

    def are_sure(self) -> bool:
        """Whether norms alone are updated, under one checkpoint each. Of one inside of another, and of what
        comes after all that backward needs, PyTorch may leave out what it runs again."""
        return all(len(spans_of(node)) < 2 and _is_norms(node) for node in self.chain)

    def refuse_what_would_differ(self, learning: _Learning, recomputed: Collection[int]) -> None:
        """What has a gradient and reads such a buffer would be computed again of another value."""
        updated = {
            name
            for node in self.chain
            for name in self.touched[node]
            if set(spans_of(node)[:1]) & {*recomputed}
        }
        same = {node for name, node in self.last.items() if name not in updated}
        matters = learning.matters
        for node in self.program.graph.nodes:
            span = next(iter(spans_of(node)), None)
            if span is None or span not in recomputed or node not in matters or not self.touched.get(node):
                continue
            reads = [read for read in node.all_input_nodes if self.touched.get(read) and read not in same]
            if reads and not (node.target is _NORM and _only_statistics(node, reads)):
                why = "backward recomputes something that reads a buffer, which has another value by then"
                raise self.refusal(span, why, node)

    def repeat(self, span: int, depth: int) -> None:
        """Once more what stands under a checkpoint, and then what stands under those inside of it."""
        nodes = [node for node in self.chain if spans_of(node)[depth : depth + 1] == [span]]
        under = set(nodes)
        now: dict[fx.Node, fx.Node] = {}
        for read in dict.fromkeys(read for node in nodes for read in node.all_input_nodes):
            if read not in under and self.touched.get(read):
                now[read] = self.current[self._owner(read, span)]
        if len({*map(self._named, now)}) < len(now):
            raise self.refusal(span, "it reads several values of one buffer")
        for node in nodes:
            if (made := self._copy(node, now, span)) is not None:
                now[node] = made
        self._leave(span, [node for node in nodes if node in now and self._leaves(node, under)], now)
        inside = dict.fromkeys(inner for node in nodes for inner in spans_of(node)[depth + 1 : depth + 2])
        for inner in reversed(list(inside)):
            self.repeat(inner, depth + 1)

    def write_back(self) -> bool:
        """Makes the last values those of the updates."""
        output = self.program.graph.output_node()
        values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
        changed = False
        for at, spec in enumerate(self.program.graph_signature.output_specs):
            name = str(spec.target)
            if spec.kind is OutputKind.BUFFER_MUTATION and self.current[name] is not self.last[name]:
                values[at] = self.current[name]
                spec.arg = TensorArgument(self.current[name].name)
                changed = True
        output.args = (tuple(values),)
        return changed

    def refusal(self, span: int, why: str, node: fx.Node | None = None) -> CaptureError:
        under = (one for one in self.program.graph.nodes if span in spans_of(one))
        updating = (one for one in self.chain if span in spans_of(one))
        node = node or next(updating, None) or next(under)
        return said_in(module_of(node), cannot_repeat(lines.with_source(node.stack_trace), why))

    def _leave(self, span: int, exits: Iterable[fx.Node], now: dict[fx.Node, fx.Node]) -> None:
        """The values that others read later are the buffers' new ones."""
        left: dict[str, fx.Node] = {}
        for node in exits:
            name = self._owner(node, span)
            if left.setdefault(name, node) is not node:
                raise self.refusal(span, "it gives several values to one buffer")
            self.current[name] = now[node]

    def _leaves(self, node: fx.Node, nodes: set[fx.Node]) -> bool:
        is_last = any(node is one for one in self.last.values())
        return is_last or any(user in self.chained and user not in nodes for user in node.users)

    def _named(self, node: fx.Node) -> str | None:
        named = (name for known in (self.last, self.held) for name, one in known.items() if one is node)
        buffers = self.touched.get(node, frozenset())
        return next(named, None) or (next(iter(buffers)) if len(buffers) == 1 else None)

    def _owner(self, node: fx.Node, span: int) -> str:
        """The buffer whose value it is."""
        name = self._named(node)
        if name is None:
            raise self.refusal(span, "what it updates is computed from several buffers")
        return name

    def _copy(self, node: fx.Node, now: dict[fx.Node, fx.Node], span: int) -> fx.Node | None:
        """What the node gives when it runs again; none where nobody reads that."""
        if node.target is _NORM:
            return None
        source: Any = node.args[0] if is_getitem(node) else None
        if source is not None and source.target is _NORM:
            return self._statistic(node, source, now)
        if draws(node.target, node.args, node.kwargs):
            raise self.refusal(span, "what is updated is random")
        with self.program.graph.inserting_before(self.program.graph.output_node()):
            made = self.program.graph.node_copy(node, lambda read: now.get(read, read))
        return _alone(made, node)

    def _statistic(self, node: fx.Node, norm: fx.Node, now: dict[fx.Node, fx.Node]) -> fx.Node:
        """Of the same batch as before: `new = share of the batch + (1 - momentum) old`."""
        old: Any = norm.args[_STATISTICS[int(node.args[1])]]  # type: ignore[arg-type]
        end, value = self.program.graph.output_node(), node.meta["val"]
        moved = _alone(insert(end, _ATEN.sub.Tensor, (now.get(old, old), old), {}, value), node)
        rest = 1 - float(norm.args[_MOMENTUM])  # type: ignore[arg-type]
        return _alone(insert(end, _ATEN.add.Tensor, (node, moved), {"alpha": rest}, value), node)


def _alone(made: fx.Node, like: fx.Node) -> fx.Node:
    """It stands under no checkpoint, and has no gradient."""
    made.meta = {**like.meta, "val": like.meta["val"]}
    custom = dict(like.meta.get("custom") or {})
    custom.pop(SPANS, None)
    made.meta["custom"] = custom
    mark_no_grad(made, True)
    return made


def _touched(graph: fx.Graph, held: dict[str, fx.Node]) -> dict[fx.Node, frozenset[str]]:
    names_of = {node: frozenset([name]) for name, node in held.items()}
    for node in graph.nodes:
        if node.op == "call_function":
            touching = [names_of[read] for read in _computed_of(node) if read in names_of]
            if names := frozenset().union(*touching):
                names_of[node] = names
    return names_of


def _computed_of(node: fx.Node) -> list[fx.Node]:
    """What its value depends on. Of a batch norm each statistic is of the older one alone, and all else of
    none."""
    source: Any = node.args[0] if is_getitem(node) else None
    if source is None or source.target is not _NORM:
        return node.all_input_nodes
    at = _STATISTICS.get(int(node.args[1]))  # type: ignore[arg-type]
    given = source.args[:3] if at is None else (source.args[at],)
    return [read for read in given if isinstance(read, fx.Node)]


def _is_norms(node: fx.Node) -> bool:
    """Whether it updates the statistics of a norm, or counts its batches."""
    source: Any = node.args[0] if is_getitem(node) else node
    counts = node.target is _ATEN.add.Tensor and not _may_learn(node)
    return source.target is _NORM or counts


def _only_statistics(norm: fx.Node, reads: Collection[fx.Node]) -> bool:
    return not set(reads).intersection(read for read in norm.args[:3] if isinstance(read, fx.Node))


def _all_before(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    reached: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += node.all_input_nodes
    return reached
