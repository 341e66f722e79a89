"""Rules on real tensors: the split operator equals the whole one, values and gradients.

Each operator of a graph becomes a graph of its own, whose operands are inputs in float64. It is compiled with
the operator split, which also proves it, and its ranks run as threads.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._core import Draft, Graph, Operator, Plan, compile
from ..as_python import Modules, Registered, registered_as, running
from ..capture.graph_text import DTYPES
from ..capture.lines import said_by
from ..capture.state.swap import same_randomness
from ..capture.verify.interpreter import Evaluator, Given
from ..errors import CaptureError, ShardwrightError
from ..runtime import ParallelModule, load_program, run_local

Splits = tuple[tuple[str, int], ...]

_SEED = 11
# In another order than the ranks, and with a repeat.
_DEVICES = {2: [1, 0], 3: [1, 2, 0], 4: [1, 2, 0, 1]}
_PARTS = (2, 3)
# Relative to the largest element.
TOLERANCE = 1e-9
# Elements of operands and results: more of them say no more of a rule.
_MOST = 2**22
# Of a dim that may be split, where fewer will do.
_FEW = 6
# Between which operands are; in one of these nearly every operator has finite values.
_RANGES = ((-2.0, 2.0), (0.1, 0.9), (1.1, 3.0))
_TYPED = re.compile(r"%(\w+) (\w+)\[([\d,]*)\]")
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_CHOICE = re.compile(r"\w[<>|&]")
_LAST_LIST = re.compile(r"\[[\d, ]*\]\)$")
_FLOATS = re.compile(r"\b(f16|bf16|f32)\b")
_CLAUSE = re.compile(r"; (linear|rising|falling) ([\d ]+)")
# What makes operands of pieces: of numbers, and of booleans.
_SUMS = [("aten.sum.dim_IntList", "aten.any.dim")]
_EXTREMES = [("aten.amax.default", "aten.any.dim"), ("aten.amin.default", "aten.all.dim")]
_NAMED = {word: dtype for dtype, word in DTYPES.items()}


@dataclass
class Tried:
    splits: Splits
    partial: tuple[int, ...] = ()
    """The operands that were given in shares."""
    difference: float = 0.0
    """Of what differs most, relative to its largest element."""
    problem: str | None = None

    def __str__(self) -> str:
        splits = " x ".join(f"{dim}:{parts}" for dim, parts in self.splits)
        return f"{splits} of {','.join(map(str, self.partial))}" if self.partial else splits


@dataclass
class Verified:
    operator: Operator
    tried: list[Tried] = field(default_factory=list)
    skipped: str | None = None
    """Why nothing was tried."""
    registered: Registered | None = None
    """How the function is registered, if it is one."""

    @property
    def named(self) -> str:
        return self.operator.target if self.registered is None else f"`{self.registered.name}`"

    @property
    def problem(self) -> str | None:
        problems = (f"split {tried}: {tried.problem}" for tried in self.tried if tried.problem)
        return next(problems, None)


def verify_rules(
    graph: Graph,
    wanted: Callable[[str], bool] = lambda target: True,
    smaller: bool = False,
    skeleton: nn.Module | None = None,
) -> Iterator[Verified]:
    """Every operator, once for each rule and each shapes that it has in the graph.

    Modules that run as they are are those of the `skeleton`.

    With `smaller`, operands of registered functions have fewer elements than in the graph, where their rules
    say that this makes no difference.
    """
    calls = {typed[1]: line for line in _lines_of("op", graph) if (typed := _TYPED.search(line))}
    known = {
        name: (dtype, [int(size) for size in shape.split(",") if size])
        for name, dtype, shape in _TYPED.findall(_STRINGS.sub("", graph.text))
    }
    buffers = {name for name, _, _ in _TYPED.findall("".join(_lines_of("buffer", graph)))}
    seen: set[str] = set()
    for operator in graph.operators:
        line = calls.get(operator.name)
        key = f"{operator.target} {operator.rule} {operator.shapes} {_texts(line or '')}"
        if line is None or not _is_wanted(wanted, operator, line) or key in seen:
            continue
        seen.add(key)
        if operator.rule is None:
            yield Verified(operator, skipped="the call has no rule: every device computes it whole")
        else:
            alone = replace(_Alone.from_operator(operator, line, known, buffers), skeleton=skeleton)
            yield _verified(operator, alone.smaller(operator) if smaller else alone)


def _is_wanted(wanted: Callable[[str], bool], operator: Operator, line: str) -> bool:
    """By its target, or by the name of the registered function that it calls."""
    names = (text[1:-1] for text in _texts(line))
    return wanted(operator.target) or any(wanted(name) for name in names if registered_as(name) is not None)


def _texts(line: str) -> list[str]:
    """Those among a call's arguments, such as a function's name."""
    return _STRINGS.findall(_call(line))


def _call(line: str) -> str:
    return line.rpartition(' at "')[0].rpartition(' in "')[0]


def wrong_rule(
    wrong: Sequence[Verified], model: str, named: str | None = None, stated: str | None = None
) -> CaptureError:
    """Of rules that do not hold. `named` is a module for which it was `stated`."""
    first, registered = wrong[0].operator, wrong[0].registered
    fix = "do not train under a plan that splits it so: report the table that `shardwright ops verify` prints"
    place = stated or (registered.place if registered is not None else None)
    if place is not None:
        what = "mark dims that must stay whole with `^`, and those that are summed with `+`"
        fix = f"correct what is {'stated' if stated else 'registered'} at {place}: {what}"
    return CaptureError(
        "SW0138",
        f"the rule of {named or wrong[0].named} does not hold",
        place=stated or f"{first.path or model} at {first.line}",
        why=f"{wrong[0].problem}" + (f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""),
        fix=fix,
    )


def _lines_of(kind: str, graph: Graph) -> list[str]:
    return [line for line in graph.text.splitlines() if line.startswith(f"{kind} ")]


def _verified(operator: Operator, alone: _Alone) -> Verified:
    verified = Verified(operator, registered=alone.registered)
    if alone.elements > _MOST:
        alone = alone.smaller(operator)
    if alone.elements > _MOST:
        verified.skipped = f"it has {alone.elements:,} elements; verify it in a smaller model"
        return verified
    graph = Graph(alone.text(_Made()))
    try:
        _whole(graph, alone, _Made())
    except Exception as error:  # an operator that takes other numbers, such as places in a range
        verified.skipped = f"it does not run on random operands ({said_by(error)})"
        return verified
    dims = _split(graph).dims
    verified.tried = [_try(alone, _Made(), splits) for splits in _choices(dims)]
    for through, group in _CLAUSE.findall(operator.rule or ""):
        positions = tuple(int(at) for at in group.split())
        if alone.may_be_made(positions):
            for by in _SUMS if through == "linear" else _EXTREMES:
                made = _Made(positions, by)
                verified.tried += [_try(alone.without_gradients(by), made, (("value", n),)) for n in _PARTS]
    if not verified.tried:
        verified.skipped = "nothing of it is split"
    return verified


def _split(graph: Graph) -> Operator:
    """By itself an operator has the dims that its rule names; in a model each may be several."""
    return next(operator for operator in graph.operators if operator.path == _OPERATOR)


def _choices(dims: Mapping[str, int]) -> Iterator[Splits]:
    """Each dim in two and three parts, and two dims at once."""
    for dim, size in dims.items():
        yield from (((dim, parts),) for parts in _PARTS if parts <= size)
    large = [dim for dim, size in dims.items() if size > 1]
    if len(large) > 1:
        yield (large[-1], 2), (large[0], 2)


class _Made(NamedTuple):
    """Operands that another operator makes, of three pieces each, and which operators do so."""

    positions: tuple[int, ...] = ()
    by: tuple[str, str] = _SUMS[0]

    def call(self, dtype: str, pieces: str) -> str:
        number, logical = self.by
        return f"{logical}(%{pieces}, 0)" if dtype == "bool" else f"{number}(%{pieces}, [0])"


def _try(alone: _Alone, made: _Made, splits: Splits) -> Tried:
    graph = Graph(alone.text(made))
    operands, expected = _whole(graph, alone, made)
    try:
        pairs = zip(_in_parts(graph, splits, operands, alone.skeleton), expected, strict=True)
        differences = [difference(*pair) for pair in pairs]
    except ShardwrightError as error:
        return Tried(splits, made.positions, problem=f"{error.code}: {error.what}")
    except Exception as error:  # parts of other shapes than the rule says, say
        return Tried(splits, made.positions, problem=f"its parts fail ({said_by(error)})")
    worst = max(differences, default=0.0)
    problem = None if worst <= TOLERANCE else f"it differs by {worst:.1e} from the whole"
    return Tried(splits, made.positions, worst, problem)


def _whole(graph: Graph, alone: _Alone, made: _Made) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs for which the operator has finite values, and what it gives for them."""
    for at, limits in enumerate(_RANGES):
        values = _values(alone.operands(made), limits)
        values = values if made.positions else alone.taken(values)
        with same_randomness():
            torch.default_generator.manual_seed(_SEED)
            inputs = [_given(value) for value in values]
            given = Given(inputs, _no_parameter, {}, {}, torch.device("cpu"))
            with running(None if alone.skeleton is None else Modules(alone.skeleton.get_submodule)):
                evaluated = Evaluator(graph.text).run(given)
            outputs = [output for output in evaluated.outputs if output is not None]
        gradients = _with_gradients(outputs, inputs)
        if at == len(_RANGES) - 1 or all(bool(tensor.isfinite().all()) for tensor in gradients):
            break
    return values, gradients


def _in_parts(
    graph: Graph, splits: Splits, values: Sequence[Tensor], skeleton: nn.Module | None
) -> list[Tensor]:
    plan = _plan(graph, splits)
    compiled = compile(plan, "all")
    program = load_program(dict(compiled.files), digest=compiled.digest, world=plan.devices)

    def rank(rank: int, comm: Any) -> list[Tensor]:
        generator = torch.Generator().manual_seed(_SEED)
        model = ParallelModule(
            program,
            comm,
            {},
            randomness="single-device",
            generator=generator,
            # Ranks are threads, and a module is called with one of them's tensors at a time.
            skeleton=copy.deepcopy(skeleton),
        )
        inputs = [_given(value) for value in values]
        outputs = model(*inputs)
        return _with_gradients(list(outputs) if isinstance(outputs, tuple) else [outputs], inputs)

    return run_local(plan.devices, rank)[0]


def _plan(graph: Graph, splits: Splits) -> Plan:
    """The operator in parts, and all else whole on every device; what makes shares in as many parts."""
    parts = prod(count for _, count in splits)
    devices = _DEVICES[parts]
    world = max(devices) + 1
    draft = Draft(graph, "split", world)
    for operator in graph.operators:
        if operator.path == _OPERATOR:
            draft.single(operator)
            for algo, count in splits:
                draft.trans(operator, algo, count)
            draft.place(operator, devices)
        elif operator.path == _MAKES:
            draft.trans(operator, next(iter(operator.dims)), parts)
            draft.place(operator, devices)
        else:
            draft.trans(operator, "replicate", world)
            draft.place(operator, list(range(world)))
    return draft.finish()


# Module paths of the small graphs.
_OPERATOR, _MAKES, _WEIGHS = "operator", "makes", "weighs"


class _Operand(NamedTuple):
    dtype: str
    shape: list[int]
    grad: bool


@dataclass
class _Alone:
    """An operator as a graph of its own."""

    call: str
    results: list[tuple[str, str, list[int]]]
    inputs: list[tuple[str, str, list[int]]]
    """Each operand once: name, dtype, shape."""
    positions: list[str]
    """The names of all operands."""
    trained: frozenset[str]
    """Of those that have gradients."""
    registered: Registered | None = None
    skeleton: nn.Module | None = None

    @staticmethod
    def from_operator(
        operator: Operator,
        line: str,
        known: Mapping[str, tuple[str, list[int]]],
        buffers: Container[str],
    ) -> _Alone:
        call = _FLOATS.sub("f64", _call(line))
        results, _, arguments = call.partition(" = ")
        positions = re.findall(r"%(\w+)", _STRINGS.sub("", arguments))
        inputs = [
            (name, _FLOATS.sub("f64", known[name][0]), known[name][1]) for name in dict.fromkeys(positions)
        ]
        typed = [(name, dtype, known[name][1]) for name, dtype, _ in _TYPED.findall(results)]
        trained = frozenset(name for name, dtype, _ in inputs if dtype == "f64" and name not in buffers)
        if _CHOICE.search(operator.rule or ""):
            # Such a dim is only split where there is no gradient.
            trained = frozenset()
        name = next(iter(_STRINGS.findall(call)), "").strip('"')
        return _Alone(call, typed, inputs, positions, trained, registered_as(name))

    def smaller(self, operator: Operator) -> _Alone:
        """With fewer elements in the dims that its rule lets be split, where that is registered."""
        smaller = operator.smaller(_FEW)
        if smaller is None:
            return self
        sizes, inputs, outputs = smaller
        shapes = dict(zip(self.positions, inputs, strict=True))
        made = zip(self.results, outputs, strict=True)
        results = [(name, dtype, shape) for (name, dtype, _), shape in made]
        typed = ", ".join(_typed(name, dtype, shape) for name, dtype, shape in results)
        call = f"op {typed} = {self.call.partition(' = ')[2]}"
        if sizes:
            call = _LAST_LIST.sub(f"{sizes})", call)
        own_inputs = [(name, dtype, shapes[name]) for name, dtype, _ in self.inputs]
        return replace(self, call=call, results=results, inputs=own_inputs)

    def taken(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Of random operands those that it takes."""
        if self.registered is None or self.registered.inputs is None:
            return list(values)
        count = len(self.inputs)
        return [*self.registered.inputs(*values[:count]), *values[count:]]

    @property
    def elements(self) -> int:
        return sum(prod(shape) for _, _, shape in (*self.inputs, *self.results))

    def may_be_made(self, made: Sequence[int]) -> bool:
        """An operand that is read twice has no sum of its own."""
        names = [self.positions[at] for at in made]
        return all(self.positions.count(name) == 1 for name in names)

    def without_gradients(self, by: tuple[str, str]) -> _Alone:
        """The same where an extreme makes operands: such a dim is only split where there is no gradient."""
        return self if by in _SUMS else replace(self, trained=frozenset())

    def operands(self, made: _Made) -> list[_Operand]:
        """What the graph is given: operands, or what makes them, and the weights of results."""
        sums = {self.positions[at] for at in made.positions}
        given = [
            _Operand(dtype, [3, *shape] if name in sums else shape, name in self.trained)
            for name, dtype, shape in self.inputs
        ]
        return given + [_Operand(dtype, shape, False) for _, dtype, shape in self._weighed()]

    def text(self, made: _Made) -> str:
        """The loss gives each element of each result a weight of its own, which is an input."""
        sums = {self.positions[at] for at in made.positions}
        lines, ops = [], []
        for at, (name, dtype, shape) in enumerate(self.inputs):
            grad = " grad" if name in self.trained else ""
            if name in sums:
                lines.append(f"input {_typed(f'parts_of_{name}', dtype, [3, *shape])} {at}{grad}")
                call = made.call(dtype, f"parts_of_{name}")
                ops.append(_op(_typed(name, dtype, shape), call, _MAKES))
            else:
                lines.append(f"input {_typed(name, dtype, shape)} {at}{grad}")
        ops.append(f'{self.call} in "{_OPERATOR}" at ""')
        total = None
        for at, (name, dtype, shape) in enumerate(self._weighed()):
            lines.append(f"input {_typed(f'weight_{at}', dtype, shape)} {len(self.inputs) + at}")
            product = f"aten.mul.Tensor(%{name}, %weight_{at})"
            ops.append(_op(_typed(f"weighed_{at}", dtype, shape), product, _WEIGHS))
            ops.append(_op(_typed(f"loss_{at}", dtype, []), f"aten.sum.default(%weighed_{at})", _WEIGHS))
            if total is not None:
                both = f"aten.add.Tensor(%{total}, %loss_{at})"
                ops.append(_op(_typed(f"total_{at}", dtype, []), both, _WEIGHS))
            total = f"loss_{at}" if total is None else f"total_{at}"
        outputs = [*([total] if total else []), *(name for name, _, _ in self.results)]
        head = ["shardwright-graph 1", 'model "Operator"']
        return "\n".join([*head, *lines, *ops, *(f"output %{name}" for name in outputs), ""])

    def _weighed(self) -> list[tuple[str, str, list[int]]]:
        return [result for result in self.results if result[1] == "f64"]


def _op(typed: str, call: str, path: str) -> str:
    return f'op {typed} = {call} in "{path}" at ""'


def _typed(name: str, dtype: str, shape: Sequence[int]) -> str:
    return f"%{name} {dtype}[{','.join(map(str, shape))}]"


def _values(operands: Sequence[_Operand], limits: tuple[float, float]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    low, high = limits
    values = []
    for operand in operands:
        dtype = _NAMED[operand.dtype]
        drawn = torch.rand(operand.shape, dtype=torch.float64, generator=generator)
        if dtype.is_floating_point:
            values.append((low + (high - low) * drawn).requires_grad_(operand.grad))
        elif dtype.is_complex:
            values.append((low + (high - low) * drawn).to(dtype))
        else:
            # Tokens, labels, places and masks: most operators take these.
            values.append((drawn < 0.5).to(dtype))
    return values


def _given(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)


def _with_gradients(outputs: list[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    results = [output.detach() for output in outputs]
    if outputs and outputs[0].requires_grad:
        outputs[0].backward()
        results += [i.grad if i.grad is not None else torch.zeros_like(i) for i in inputs if i.requires_grad]
    return results


def difference(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    if not theirs.numel():
        return 0.0
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    ours, theirs = ours.to(wide), theirs.to(wide)
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    error = torch.where(same, 0.0, (ours - theirs).abs().nan_to_num(nan=torch.inf))
    size = theirs.abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(error.max()) / max(float(size.max()), 1.0)


def _no_parameter(name: str) -> Tensor:
    raise KeyError(name)
