"""A proposed rule beside the whole function, compared as registered rules are, on several sets of sizes."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._core import Discovery, Graph
from ..as_python.calls import Size, read, written
from ..as_python.registry import Registered, for_now
from ..capture.graph_text import DTYPES
from ..capture.lines import said_by
from ..rules.verifying import Tried, Verified, verify_rules
from .resizing import Resizing, Sizes
from .subject import Subject
from .trying import alike, apart, example_of, led
from .whole import Whole

_MODULE = "shardwright_discovered"
_NAME = f"{_MODULE}:function"
_CHOICES = set("><|&")


@dataclass
class Proposal:
    rule: str
    names: list[str]
    linear: list[list[int]]
    shapes: list[list[list[int]]] = field(default_factory=list)
    verified: int = 0
    difference: float = 0.0
    dropped: list[str] = field(default_factory=list)


@dataclass
class _Rule:
    text: str
    names: list[str]
    """Of the splits that hold."""
    given: list[tuple[str, int]]


@dataclass
class _Wrong:
    """What does not hold, and why."""

    why: str
    dim: int | None = None
    linear: list[int] | None = None


def confirmed(
    subject: Subject,
    discovery: Discovery,
    resizing: Resizing,
    linear: Sequence[list[int]],
    taught: bool,
) -> Proposal:
    """The rule of all that holds, without what is refuted here. `taught`: whether a result has a gradient."""
    left = list(linear)
    dropped: list[str] = []
    while True:
        rule = _Rule(*discovery.propose(resizing.classes(), left))
        proposal = Proposal(_with_sizes(rule.text, rule.given), rule.names, left, dropped=dropped)
        wrong = _wrong(subject, resizing, rule, proposal, taught)
        if wrong is None:
            return proposal
        dropped.append(f"`{rule.text}`: {wrong.why}")
        if wrong.linear is not None:
            left.remove(wrong.linear)
        elif wrong.dim is not None:
            resizing.drop(wrong.dim)
        else:
            left = []
            for at in reversed(range(len(resizing.held))):
                resizing.drop(at)


def _wrong(
    subject: Subject, resizing: Resizing, rule: _Rule, proposal: Proposal, taught: bool
) -> _Wrong | None:
    """Fills in what was compared. Where a maximum is taken, once with gradients and once without."""
    if not rule.names and not proposal.linear:
        return None
    sets = [resizing.example(), *(resizing.sets() if rule.names else [])]
    for sizes in sets:
        outputs = subject.run(subject.draw(sizes.shapes, 1), sizes.values)
        ways = [True] * taught + [False] * bool(not taught or _CHOICES & set(rule.text.partition("->")[0]))
        for learns in ways:
            graph = _graph(subject, resizing, rule, sizes, outputs, learns)
            with _registered(subject):
                try:
                    outcomes = list(verify_rules(Graph(graph), skeleton=skeleton_of(subject)))
                except Exception as error:  # partial sums that it does not take
                    return _Wrong(f"it could not be compared ({said_by(error)})")
            wrong = _refuted(outcomes, proposal)
            if wrong is not None:
                return wrong
        proposal.shapes.append(sizes.shapes)
    return None


def _refuted(outcomes: Sequence[Verified], proposal: Proposal) -> _Wrong | None:
    for one in outcomes:
        if one.skipped is not None and one.skipped != "nothing of it is split":
            return _Wrong(one.skipped)
        for tried in one.tried:
            if tried.problem is not None:
                return _blamed(tried, proposal)
            proposal.verified += 1
            proposal.difference = max(proposal.difference, tried.difference)
    return None


def _blamed(tried: Tried, proposal: Proposal) -> _Wrong:
    why = f"split {tried}, {tried.problem}"
    if tried.partial:
        return _Wrong(why, linear=list(tried.partial))
    dims = [proposal.names.index(dim.partition(".")[0]) for dim, _ in tried.splits]
    return _Wrong(why, dim=dims[0])


def _sizes_by_name(resizing: Resizing, names: Sequence[str]) -> dict[str, int]:
    """The dims whose sizes are arguments, with these."""
    splits = (split for split, _ in resizing.held)
    pairs = zip(names, splits, strict=True)
    return {name: split.argument for name, split in pairs if split.argument is not None}


def _with_sizes(text: str, sizes: Sequence[tuple[str, int]]) -> str:
    return text + (" ; size " + " ".join(f"{name}={size}" for name, size in sizes) if sizes else "")


def verified(subject: Subject, rule: str, arguments: Mapping[str, str]) -> list[Verified]:
    """A rule that somebody has stated, on the example and on random numbers of several kinds.

    `arguments` are those that are sizes of its dims.
    """
    outputs = subject.run(example_of(subject), subject.values)
    values: list[Any] = list(subject.values)
    dims: dict[str, int] = {}
    for at, (dim, argument) in enumerate(arguments.items()):
        place = subject.arguments.index(argument)
        dims[dim], values[place] = values[place], Size(at)
    taught = any(output.requires_grad for output in outputs)
    graph = Graph(_written(subject, subject.shapes, values, rule, dims, outputs, taught))
    outcomes: list[Verified] = []
    for seed, change in ((0, _unchanged), (6, _unchanged), (7, alike), (8, led), (9, apart)):
        with _registered(subject, seed, change):
            outcomes += verify_rules(graph, skeleton=skeleton_of(subject))
    tried = [one for one in outcomes if one.tried]
    return tried or outcomes


def _unchanged(x: Tensor) -> Tensor:
    return x


@contextmanager
def _registered(
    subject: Subject, seed: int = 6, change: Callable[[Tensor], Tensor] = _unchanged
) -> Iterator[None]:
    """Under a name by which it is found, with the tensors that it takes: by the number 0 the example's."""

    state = [*subject.module.state.values()] if subject.module is not None else []

    def taken(*given: Tensor) -> list[Tensor]:
        subject.settle(seed)
        held = [tensor.detach().clone() for tensor in state]
        drawn = subject.draw([x.shape for x in given[len(held) :]], seed) if seed else example_of(subject)
        drawn = held + [change(x) if x.dtype.is_floating_point else x for x in drawn]
        return [x.requires_grad_(example.requires_grad) for x, example in zip(drawn, given, strict=True)]

    home: Any = types.ModuleType(_MODULE)
    home.function = subject.function
    before = sys.modules.get(_MODULE)
    sys.modules[_MODULE] = home
    try:
        with for_now(Registered(subject.function, _NAME, "", {}, None, taken, "")):
            yield
    finally:
        del sys.modules[_MODULE]
        if before is not None:
            sys.modules[_MODULE] = before


def _graph(
    subject: Subject, resizing: Resizing, rule: _Rule, sizes: Sizes, outputs: Sequence[Tensor], learns: bool
) -> str:
    resized = _sizes_by_name(resizing, rule.names)
    values: list[Any] = list(sizes.values)
    for at, argument in enumerate(resized.values()):
        values[argument] = Size(at)
    known = dict(zip(rule.names, sizes.dims, strict=True))
    dims = {name: known[name] for name in resized}
    dims |= {name: known.get(name, size) for name, size in rule.given}
    return _written(subject, sizes.shapes, values, rule.text, dims, outputs, learns)


def _written(
    subject: Subject,
    shapes: Sequence[Sequence[int]],
    values: Sequence[Any],
    rule: str,
    dims: Mapping[str, int],
    outputs: Sequence[Tensor],
    learns: bool,
) -> str:
    """The function as the one operator of a graph."""
    call, _ = written(*read(subject.text, subject.samples, values))
    kinds = [
        DTYPES[torch.float64 if subject.is_float(at) else x.dtype] for at, x in enumerate(subject.samples)
    ]
    inputs = [
        _given(f"x{at}", kind, shape, at, learns, learns)
        for at, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
    ]
    operands = ", ".join(f"%x{at}" for at in range(len(inputs)))
    more = f", [{', '.join(map(json.dumps, dims))}], {list(dims.values())}" if dims else ""
    arguments = f"[{operands}], {json.dumps(call)}"
    function, name = "function", json.dumps(_NAME)
    if subject.module is not None:
        function, name = "module", _state_written(subject.module, inputs, learns)
        arguments += f", [], {subject.module.wide.training}, None"
    results = [f"%y{at} {DTYPES[x.dtype]}{_shape(list(x.shape))}" for at, x in enumerate(outputs)]
    arguments = f"{name}, {arguments}, {json.dumps(rule)}{more}"
    return "\n".join(
        [
            "shardwright-graph 1",
            'model "Function"',
            *inputs,
            f'op {", ".join(results)} = shardwright.{function}.default({arguments}) in "" at ""',
            *(f"output %y{at}" for at in range(len(outputs))),
            "",
        ]
    )


def _state_written(module: Whole, inputs: list[str], learns: bool) -> str:
    """A module's first arguments. What these are is put among the graph's inputs."""
    names, held = [], []
    for at, (name, tensor) in enumerate(module.state.items()):
        names.append(json.dumps(name))
        held.append(f"%w{at}")
        kind, shape = DTYPES[tensor.dtype], list(tensor.shape)
        trained = learns and any(tensor is one for one in module.trained)
        inputs.append(_given(f"w{at}", kind, shape, len(inputs), trained, trained))
    return f"{json.dumps(_NAME)}, [{', '.join(names)}], [{', '.join(held)}]"


def _given(name: str, kind: str, shape: Sequence[int], at: int, is_input: bool, grad: bool) -> str:
    if not is_input:
        return f'buffer %{name} {kind}{_shape(shape)} "{name}"'
    return f"input %{name} {kind}{_shape(shape)} {at}" + " grad" * (grad and kind == "f64")


def skeleton_of(subject: Subject) -> nn.Module | None:
    """A model in which the module is found."""
    if subject.module is None:
        return None
    skeleton = nn.Module()
    skeleton.add_module(_NAME, subject.module.wide)
    return skeleton


def _shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
