"""Capture: a PyTorch module and example inputs become the text of a graph."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import BoundArguments
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..errors import CaptureError, ShardwrightError
from ..precision import Precision, dtype_name, dtype_named
from .autocast import ambient
from .casts import Casting
from .checkpointed_regions import cannot_repeat
from .export import Tracing
from .fx_nodes import results_of, updated_of
from .graph_text import Sources, constants_of, print_graph, sources_of
from .opaque.finding import traced_around
from .opaque.modules import Opaque
from .passes import Traced
from .settings import notes, without_cache
from .spec import CallSpec, ResultSpec
from .state.hidden_on_fakes import refuse_what_is_kept, run_without_values
from .state.memory import Aliases, refuse_shared
from .state.names import Names
from .state.swap import same_randomness
from .static_inputs.buffers import Known, said_of_fixed
from .static_inputs.named import KnownInputs, said_of_known
from .static_inputs.noticed import Inputs, with_inputs
from .torch_errors import refusal
from .trace import trace
from .verify.against_module import (
    Call,
    can_verify,
    computes_the_same,
    fails,
    forward,
    given_to,
    missing_value,
)
from .verify.comparison import Compared, Comparison, Noted, kind_of, with_values
from .verify.random_values import kinds_here

__all__ = [
    "CallSpec",
    "CaptureError",
    "Captured",
    "Compared",
    "Noted",
    "ResultSpec",
    "capture",
    "operands",
    "still_computes",
]


@dataclass
class Captured:
    """A graph and what is needed to call its program like the module."""

    graph_text: str
    constants: dict[str, Tensor]
    """The values of the ``const`` lines, by name, on the CPU."""
    in_spec: CallSpec
    out_spec: ResultSpec
    buffer_aliases: dict[str, str] = field(default_factory=dict)
    """Further names of tied buffers, and the name that has the ``buffer`` line."""
    verified: bool = False
    """Whether graph and module were compared on the example inputs."""
    compared: Compared | None = None
    """What of them was, and how long that took."""
    notes: list[str] = field(default_factory=list)
    as_python: dict[str, tuple[str, float]] = field(default_factory=dict)
    """What runs as the Python that it is, a module by its path and a function by its name: why, and its share
    of a forward's operations."""
    precision: Precision | None = None
    kept: dict[str, torch.dtype] = field(default_factory=dict)
    """What a rank keeps of parameters that the graph has in another dtype."""
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    """The autocast that the module was captured under, by device."""
    device: str | None = None
    """The type of the devices for which the graph is right, if it depends on that."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Buffers for whose values alone the graph is right, for the model reads them in Python, with these."""
    for_backward: bool | None = None
    """Whether a backward follows each forward, where that matters: then what the forward updates under a
    checkpoint is updated again, as PyTorch does."""

    @property
    def structure(self) -> Hashable:
        """By this a program is chosen for a call."""
        return self.in_spec.structure, self.autocast

    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[Tensor]]:
        """The structure of any call, and its tensors."""
        args, kwargs = self._cast((args, kwargs))
        structure, tensors = self.in_spec.describe(args, kwargs)
        return (structure, ambient()), tensors

    def is_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call has the structure of this one."""
        return self.describe(args, kwargs)[0] == self.structure

    @property
    def known_names(self) -> Sequence[str]:
        """The inputs that the model reads in Python, where it may."""
        return self.in_spec.known_names

    def tensor_names(self, structure: Hashable) -> list[str]:
        """What a person calls the tensors of a structure, by position."""
        return self.in_spec.tensor_names(structure[0])  # type: ignore[index]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
        """The tensors of a call, by the positions of the ``input`` lines."""
        if ambient() != self.autocast:
            raise CaptureError(
                "SW0131",
                "the model is called under another autocast than it was captured under",
                why=f"it was {_say(self.autocast)}, now it is {_say(ambient())}",
                fix="call it as it was captured",
            )
        args, kwargs = self._cast((args, kwargs or {}))
        return self.in_spec.flatten(args, kwargs)

    def output_names(self) -> list[str]:
        """What a person calls the results, such as ``hidden_states.0``, by the ``output`` lines."""
        return self.out_spec.names()

    def unflatten(self, outputs: Sequence[Tensor | None]) -> Any:
        """The module's result from the tensors of the ``output`` lines."""
        return self.out_spec.unflatten(outputs)

    def dtypes(self) -> dict[str, Any]:
        """Precision, autocast and what follows from them, as plain data."""
        return {
            "precision": self.precision and self.precision.plain(),
            "kept": {name: dtype_name(dtype) for name, dtype in self.kept.items()},
            "autocast": [[device, dtype_name(dtype)] for device, dtype in self.autocast],
            "device": self.device,
        }

    @property
    def not_compared(self) -> str | None:
        """What is said of graph and module if they were not."""
        return next((note for note in self.notes if note.startswith(_NOT_COMPARED)), None)

    def with_dtypes(self, plain: dict[str, Any]) -> Captured:
        precision = plain["precision"]
        return replace(
            self,
            precision=Precision.of_plain(precision) if precision else None,
            kept={name: dtype_named(dtype) for name, dtype in plain["kept"].items()},
            autocast=tuple((device, dtype_named(dtype)) for device, dtype in plain["autocast"]),
            device=plain["device"],
        )

    def _cast(self, call: Any) -> Any:
        return self.precision.cast(call) if self.precision else call


def capture(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    verify: bool | None = None,
    precision: Precision | None = None,
    device: str | None = None,
    known_inputs: KnownInputs = None,
    noted: Noted | None = None,
) -> Captured:
    """Captures one forward of a module in the mode (training or not) that it is in.

    The text is the same for real and meta tensors, and says which inputs require a gradient. ``verify``
    compares the graph with the module
    on the example inputs, gradients too, however long that takes; by default as much of it as is a matter of
    seconds. Where there are no values it is done with random ones, if they are few enough.
    With a ``precision``, the graph is that of the module whose parameters and floating inputs are cast.
    ``device`` is the type of those that the graph will run on, if known: autocast depends on it.
    The graph is for what the model reads in Python of the values of ``known_inputs``; without names of any
    input, if there is no graph otherwise. While gradients are off, it is that of a forward which no backward
    follows. What was compared at another start, and would take long, is `noted`.
    The module is as before afterwards.
    """
    backward = torch.is_grad_enabled()
    if precision:
        args, kwargs = precision.cast((args, kwargs or {}))
    kwargs = kwargs or {}
    bound = CallSpec.of_call(module.forward, args, kwargs).bind(args, kwargs)
    said = notes(module)

    def make(inputs: Inputs) -> Captured:
        with without_cache(module, bound.arguments):
            try:
                return _capture(
                    module, inputs, (args, kwargs), bound, verify, precision, device, backward, noted
                )
            except (ShardwrightError, MemoryError):
                raise
            except Exception as error:  # in our own words, whatever it is
                raise refusal(error) from error

    share = _opaque_share if can_verify(module, bound) else None
    captured = with_inputs(make, module, args, kwargs, known_inputs, share)
    captured.notes += said
    return captured


def still_computes(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    captured: Captured,
    text: str,
) -> bool:
    """Whether a module does, on these inputs, what was captured of it at another time. Also where values are
    missing, and nothing can be compared."""
    if captured.precision:
        args, kwargs = captured.precision.cast((args, kwargs or {}))
    bound = captured.in_spec.bind(args, kwargs or {})
    with (
        without_cache(module, bound.arguments),
        _with_values(module, bound, captured.precision, captured.device, captured.device) as call,
    ):
        return isinstance(call, str) or computes_the_same(
            call, text, captured.constants, captured.out_spec, recomputes=captured.for_backward is True
        )


@contextmanager
def operands(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    captured: Captured,
    wanted: Container[int],
    device: str | None = None,
) -> Iterator[tuple[nn.Module, dict[int, list[Any]]] | str]:
    """The model with values, and what operators of its graph, by number, are given; or why there are none."""
    if captured.precision:
        args, kwargs = captured.precision.cast((args, kwargs or {}))
    bound = captured.in_spec.bind(args, kwargs or {})
    with (
        without_cache(module, bound.arguments),
        _with_values(module, bound, captured.precision, device) as call,
    ):
        if isinstance(call, str):
            yield call
        else:
            yield call.module, given_to(call, captured.graph_text, captured.constants, wanted)


def _capture(
    module: nn.Module,
    inputs: Inputs,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    bound: BoundArguments,
    verify: bool | None,
    precision: Precision | None,
    device: str | None,
    backward: bool,
    noted: Noted | None,
) -> Captured:
    names = Names.from_module(module)
    casting, known = Casting(module, precision), Known(module)

    def attempt(opaque: Opaque) -> Traced:
        opaque.checks.clear()
        given = bound.args, bound.kwargs
        tracing = Tracing(
            module, names, *given, casting, device, opaque, known, inputs.known, inputs.floats, backward
        )
        try:
            return trace(tracing)
        except CaptureError as error:
            if error.code == "SW0101":
                _refuse_what_does_not_run(module, bound, casting)
            raise

    values = partial(_with_values, module, bound, precision, device)
    traced, opaque = traced_around(module, values, attempt, inputs.helps)
    program = traced.program
    call = inputs.as_read(traced.reading)
    result = ResultSpec.of_leaves(_result_tree(program), _leaves(results_of(program)))
    sources = sources_of(program, names)
    refuse_shared(module, map(names.canonical, updated_of(program)))
    constants = constants_of(program, sources, Aliases(module))
    wanted = [tensor.requires_grad for tensor in call.flatten(bound.args, bound.kwargs)]
    text = print_graph(module, program, names, sources, call, result, casting, wanted)
    captured = Captured(text, constants, call, result, _aliases(names), precision=precision)
    captured.as_python = opaque.reasons()
    captured.notes += said_of_known(call.known_names, whole=call.reading is None)
    captured.notes += opaque.notes(module) + inputs.advice([why for why, _ in captured.as_python.values()])
    captured.fixed = known.fixed
    captured.notes += said_of_fixed(captured.fixed)
    captured.kept, captured.autocast = _kept(module, sources, precision), ambient()
    captured.for_backward = traced.for_backward
    captured.device = traced.device
    if verify is not False:
        less = partial(_capture_less, module, precision, device, captured)
        writes, always = traced.writes, verify is True
        compared = Comparison(
            module, *given, precision, device, captured.device, writes, less, noted, always
        ).run(captured)
    else:
        compared = _NOT_ASKED
    if isinstance(compared, Compared):
        captured.verified, captured.compared = True, compared
        return captured
    if verify:
        raise _cannot_compare(compared)
    if captured.for_backward and verify is None and not traced.is_sure:
        raise cannot_repeat(None, f"how often it does so is only known from a comparison, and {compared}")
    if traced.keeps:
        refuse_what_is_kept(module, bound.args, bound.kwargs, casting)
    captured.notes.append(f"{_NOT_COMPARED}: {compared}")
    return captured


def _capture_less(
    module: nn.Module,
    precision: Precision | None,
    device: str | None,
    whole: Captured,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Captured:
    """Of another call, or of fewer layers, reading the same inputs."""
    names = whole.known_names
    return capture(module, args, kwargs, verify=False, precision=precision, device=device, known_inputs=names)


def _opaque_share(captured: Captured) -> float:
    return sum(share for _, share in captured.as_python.values())


def _refuse_what_does_not_run(module: nn.Module, bound: BoundArguments, casting: Casting) -> None:
    """A model that fails by itself is told so, and nothing about tracing."""
    try:
        if missing_value(module, bound) is None:
            with same_randomness(), torch.enable_grad():
                forward(Call(module, bound, casting))
        else:
            run_without_values(module, bound.args, bound.kwargs, casting)
    except Exception as error:
        raise fails(error) from error


_NOT_COMPARED = "graph and module were not compared"
_NOT_ASKED = "it was not asked for"


def _with_values(
    module: nn.Module,
    bound: BoundArguments,
    precision: Precision | None,
    device: str | None,
    casts_of: str | None = None,
) -> AbstractContextManager[Call | str]:
    """A call that can be run where the model lies, or why there is none."""
    kinds = kinds_here(device, casts_of)
    if casts_of in (None, kind_of(module)) and missing_value(module, bound) is None:
        kinds = [kind_of(module)]
    return with_values(module, bound, precision, kinds)


def _cannot_compare(why: str) -> CaptureError:
    return CaptureError(
        "SW0113",
        "graph and module cannot be compared",
        why=why,
        fix="leave out `verify=True`, or capture a module with values",
    )


def _result_tree(program: Any) -> Any:
    return program.call_spec.out_spec


def _leaves(results: list[Any]) -> list[Any]:
    return [leaf.meta["val"] if isinstance(leaf, fx.Node) else leaf for leaf in results]


def _kept(module: nn.Module, sources: Sources, precision: Precision | None) -> dict[str, torch.dtype]:
    """A precision's masters, or else the dtype that a parameter has in the module."""
    kept = {}
    for name, node in sources.params.items():
        parameter, read = module.get_parameter(name), node.meta["val"].dtype
        dtype = precision.master if precision and read == precision.param else parameter.dtype
        if dtype != read:
            kept[name] = dtype
    return kept


def _say(autocast: tuple[tuple[str, torch.dtype], ...]) -> str:
    return ", ".join(f"{dtype} on {device}" for device, dtype in autocast) or "off"


def _aliases(names: Names) -> dict[str, str]:
    return {other: first for first, (_, *rest) in names.buffers.items() for other in rest}
