"""Compares the captured graph with the module: outputs, buffers and all gradients, over two forwards."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ... import as_python
from ...errors import CaptureError, ShardwrightError
from .. import lines
from ..casts import Casting
from ..checkpointed_regions import cannot_repeat, plain_checkpoint
from ..lines import place_of_error, said_by
from ..random.draws import Draw, Recording, Replaying
from ..spec import ResultSpec
from ..state.hidden import Kept, changes, changing_line, kept_by, kept_error
from ..state.memory import has_no_value, identity
from ..state.swap import borrowed, following, same_randomness
from .interpreter import Evaluated, Evaluator, Given, Watch
from .locate import where_they_part
from .restoring import Restoring
from .results import Results, first_difference, weighted_sum, with_gradients

_SEED = 1234


@dataclass
class Call:
    """A module and a call of it, with values."""

    module: nn.Module
    bound: inspect.BoundArguments
    casting: Casting

    def arguments(self) -> tuple[Any, Any]:
        """Copies, that may be changed."""

        def copy(tensor: Tensor) -> Tensor:
            return tensor.detach().clone().requires_grad_(tensor.requires_grad)

        copies: tuple[Any, Any] = pytree.tree_map_only(Tensor, copy, (self.bound.args, self.bound.kwargs))
        return copies

    def given(
        self, inputs: Sequence[Tensor], constants: dict[str, Tensor], state: dict[str, Tensor]
    ) -> Given:
        tensors = [*self.module.parameters(), *inputs]
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))

        def parameter(name: str) -> Tensor:
            """Its value, if a forward has written it."""
            return state[name] if name in state else self.module.get_parameter(name)

        return Given(inputs, parameter, state, constants, device)


def can_verify(module: nn.Module, bound: inspect.BoundArguments) -> bool:
    """Whether every parameter, buffer and argument has a value."""
    return missing_value(module, bound) is None


def missing_value(module: nn.Module, bound: inspect.BoundArguments) -> str | None:
    """What has none."""
    named: list[tuple[str, Tensor]] = []
    named += [(f"the parameter `{name}`", tensor) for name, tensor in module.named_parameters()]
    named += [(f"the buffer `{name}`", tensor) for name, tensor in module.named_buffers()]
    named += [("an argument", tensor) for tensor in _tensors((bound.args, bound.kwargs))]
    return next((name for name, tensor in named if has_no_value(tensor)), None)


def verify_capture(
    call: Call,
    text: str,
    constants: dict[str, Tensor],
    structure: ResultSpec | None = None,
    writes: str | None = None,
) -> None:
    """Raises where module and graph differ, whose results are in the order of a `structure`. `writes` is the
    line that writes something under a checkpoint, which backward does again."""
    with same_randomness(), torch.enable_grad():
        expected = _expected(call, recomputes=writes is not None)
        results = _run_graph(call, text, constants, structure, expected)
    _refuse_other_updates(results, expected, writes)
    problem = _difference(results[0], expected[0])
    if problem is None:
        _refuse_memory(call, results[1], expected)
        return
    with same_randomness(), torch.enable_grad():
        place, why = where_they_part(
            lambda: forward(call), lambda watch: _run_graph(call, text, constants, structure, expected, watch)
        )
    raise CaptureError(
        "SW0114",
        f"the captured graph does not compute what the module computes: {problem}",
        place=place,
        why=why,
        fix="write this line so that the model takes the same path while it is traced"
        if place
        else "run parts of the model through `shardwright.capture` to find the one that differs",
    )


def _refuse_other_updates(captured: Sequence[Run], expected: Sequence[Run], writes: str | None) -> None:
    for one, other in zip(captured, expected, strict=True) if writes is not None else ():
        ours, theirs = (Results(buffers=run.results.buffers) for run in (one, other))
        if problem := first_difference(ours, theirs):
            why = f"after a backward of the model {problem}"
            raise cannot_repeat(lines.with_source(writes), why)


def _difference(captured: Run, expected: Run) -> str | None:
    problem = first_difference(captured.results, expected.results)
    if problem is None and captured.unknown:
        problem = f"it draws random numbers with {captured.unknown[0]}, and the module does not"
    return problem


def _refuse_memory(call: Call, captured: Run, expected: Sequence[Run]) -> None:
    """What changes from forward to forward besides buffers, and what a second forward does otherwise."""
    if first_difference(expected[1].registered, expected[0].registered) is not None:
        raise kept_error(next(iter(expected[1].registered.buffers)), None)
    changing = changes(*expected[1].kept)
    problem = None if changing else _difference(captured, expected[1])
    changing = changing or changes(*expected[0].kept)
    if problem is None and not changes(*expected[1].kept):
        return
    if changing:
        place, where = changing[0]
        with same_randomness(), torch.enable_grad():
            line = changing_line(place, lambda: forward(call))
        raise kept_error(place.path + where, line)
    raise CaptureError(
        "SW0137",
        f"a second forward of the model computes something else than the first: {problem}",
        why="it keeps something, outside of its buffers, that the graph does not have",
        fix="keep it in a buffer (`register_buffer`) and change that in place, or give it as an input",
    )


def forward(call: Call) -> Any:
    args, kwargs = call.arguments()
    torch.manual_seed(_SEED)
    with Restoring(call.module), run_borrowed(call), plain_checkpoint():
        return call.module(*args, **kwargs)


def computes_the_same(
    call: Call, text: str, constants: dict[str, Tensor], structure: ResultSpec, *, recomputes: bool
) -> bool:
    """Whether one forward of a module gives what a graph says that was captured before; where backward
    `recomputes` what updates buffers, with a backward."""
    with same_randomness(), torch.set_grad_enabled(recomputes):
        try:
            expected = _expected(call, 1, recomputes=recomputes)
            results = _run_graph(call, text, constants, structure, expected)
        except Exception:
            return False
    return _difference(results[0], expected[0]) is None


@dataclass
class Run:
    """One forward of a module, or of a graph."""

    results: Results
    draws: list[Draw] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    kept: tuple[Kept, Kept] = ({}, {})
    """What the module keeps in Python, before and after."""
    registered: Results = field(default_factory=Results)
    """Buffers that forwards have registered."""
    structure: pytree.TreeSpec | None = None
    """That of a module's results."""


def _expected(call: Call, count: int = 2, *, recomputes: bool = False) -> list[Run]:
    try:
        runs = _run_module(call, count)
        updated = updated_by_backward(call, count) if recomputes else [run.results.buffers for run in runs]
        for run, buffers in zip(runs, updated, strict=True):
            run.results.buffers = buffers
        return runs
    except Exception as error:
        raise fails(error) from error


def fails(error: Exception) -> CaptureError:
    return CaptureError(
        "SW0115",
        "the model fails on the example inputs",
        place=place_of_error(error),
        why=said_by(error),
        fix="make the model run, forward and backward, on these inputs without Shardwright",
    )


def run_borrowed(call: Call, *, leaves: bool = False) -> Any:
    """A context in which the module has copies of what a forward may change; with `leaves` its parameters are
    others, too, whose gradients and hooks are nobody's."""
    clones: dict[Hashable, Tensor] = {}

    def table(tensor: Tensor) -> Tensor:
        key = identity(tensor)
        if key not in clones:
            is_param = isinstance(tensor, nn.Parameter)
            clones[key] = _read(tensor, call.casting) if is_param else tensor.detach().clone()
            if is_param and leaves:
                clones[key] = nn.Parameter(clones[key].detach().clone(), tensor.requires_grad)
        return clones[key]

    return borrowed(call.module, table, following(call.module, table))


def _run_module(call: Call, count: int = 2) -> list[Run]:
    """Forwards, one after the other."""
    parameters = dict(call.module.named_parameters())
    runs: list[Run] = []
    torch.manual_seed(_SEED)
    with Restoring(call.module) as restoring, run_borrowed(call), plain_checkpoint():
        names = set(buffers_of(call.module))
        for at in range(count):
            args, kwargs = call.arguments()
            before = kept_by(call.module)
            with Recording() as recording:
                leaves, structure = pytree.tree_flatten(call.module(*args, **kwargs))
            outputs = [leaf if isinstance(leaf, Tensor) else None for leaf in leaves]
            buffers = {n: b.detach().clone() for n, b in buffers_of(call.module).items()}
            results = Results(buffers={name: buffers.pop(name) for name in list(buffers) if name in names})
            results.buffers |= restoring.written()
            with_gradients(results, outputs, {} if at else parameters, _tensors((args, kwargs)))
            kept = before, kept_by(call.module)
            registered = Results(buffers=buffers)
            runs.append(Run(results, recording.draws, kept=kept, registered=registered, structure=structure))
    return runs


def updated_by_backward(call: Call, count: int) -> list[dict[str, Tensor]]:
    """Buffers and written parameters after each of some forwards and its backward, where checkpoints run
    again what is under them."""
    updated: list[dict[str, Tensor]] = []
    torch.manual_seed(_SEED)
    with Restoring(call.module) as restoring, run_borrowed(call, leaves=True):
        names = set(buffers_of(call.module))
        for _ in range(count):
            args, kwargs = call.arguments()
            with Recording():
                results = pytree.tree_leaves(call.module(*args, **kwargs))
                learning = [x for x in results if isinstance(x, Tensor) and x.requires_grad]
                losses = [x for x in learning if x.dim() == 0] or learning
                if losses:
                    weighted_sum(losses).backward()  # type: ignore[no-untyped-call]
            buffers = {n: b.detach().clone() for n, b in buffers_of(call.module).items() if n in names}
            updated.append(buffers | restoring.written())
    return updated


def _run_graph(
    call: Call,
    text: str,
    constants: dict[str, Tensor],
    structure: ResultSpec | None,
    expected: Sequence[Run],
    watch: Watch | None = None,
) -> list[Run]:
    """As many forwards, each with the buffers of the one before."""
    parameters = dict(call.module.named_parameters())
    order = list(parameters)
    state = {name: buffer.detach().clone() for name, buffer in buffers_of(call.module).items()}
    evaluator = Evaluator(text)
    runs: list[Run] = []
    for run in expected if watch is None else expected[:1]:
        inputs = _tensors(call.arguments())
        torch.manual_seed(_SEED)
        modules = as_python.Modules(call.module.get_submodule)
        with Replaying(run.draws, partial(_place, evaluator)) as replaying, as_python.running(modules):
            evaluated = _evaluated(evaluator, call.given(inputs, constants, state), watch)
        updates = {name: value.detach() for name, value in evaluated.updates.items()}
        written = {name: updates.pop(name) for name in order if name in updates}
        state = {**state, **updates} | written
        results = Results(buffers=state)
        outputs = structure.ordered(evaluated.outputs, run.structure) if structure else evaluated.outputs
        with_gradients(results, outputs, {} if runs else parameters, inputs)
        runs.append(Run(results, unknown=replaying.unknown))
    return runs


def _evaluated(evaluator: Evaluator, given: Given, watch: Watch | None) -> Evaluated:
    try:
        return evaluator.run(given, watch)
    except ShardwrightError:
        raise
    except Exception as error:
        raise CaptureError(
            "SW0114",
            "the captured graph does not run, but the module does",
            place=evaluator.now.place if evaluator.now else None,
            why=lines.said_by(error),
            fix="write this line with other tensor operators, or put it into a module of its own and let that"
            " run as it is: `shardwright.opaque(module)`",
        ) from error


def given_to(
    call: Call, text: str, constants: dict[str, Tensor], wanted: Container[int]
) -> dict[int, list[Any]]:
    """What operators of the graph, by number, are given by position."""
    state = {name: buffer.detach().clone() for name, buffer in buffers_of(call.module).items()}
    numbers = itertools.count()
    operands: dict[int, list[Any]] = {}

    def before(args: list[Any]) -> None:
        number = next(numbers)
        if number in wanted:
            operands[number] = pytree.tree_map_only(Tensor, Tensor.detach, args)

    with same_randomness(), torch.enable_grad():
        torch.manual_seed(_SEED)
        inputs = _tensors(call.arguments())
        with as_python.running(as_python.Modules(call.module.get_submodule)):
            Evaluator(text).run(call.given(inputs, constants, state), before=before)
    return operands


def _place(evaluator: Evaluator) -> str:
    """The line of the operator that is being run, or the one inside of it that draws."""
    if as_python.is_inside():
        return lines.short(lines.trace_of_caller(sys._getframe(1)))
    return evaluator.now.place if evaluator.now else ""


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Each buffer once, by its first name."""
    firsts: dict[Hashable, tuple[str, Tensor]] = {}
    for name, buffer in module.named_buffers():
        firsts.setdefault(identity(buffer), (name, buffer))
    return dict(firsts.values())


def _read(parameter: Tensor, casting: Casting) -> Tensor:
    """The cast that a rank makes of what it keeps, and that of the graph."""
    return parameter.to(casting.read(parameter)).to(casting.computed(parameter))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
