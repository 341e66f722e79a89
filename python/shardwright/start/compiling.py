"""From a module and a plan to a proved program: capture, then everything that Rust decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from .._core import Compiled, Graph, Plan, compile
from ..capture import Captured, Noted, capture
from ..capture.static_inputs.named import KnownInputs
from ..errors import CaptureError, RuntimeFault
from ..precision import Precision, precision_of
from ..report.memory import OPTIMIZER
from ..rules.registered import compare_registered
from .outputs import Asked, resolve
from .planning import PlanLike, make_plan


@dataclass
class Bundle:
    """A program and what is needed to run it: picklable, without the model's weights."""

    files: dict[str, str]
    digest: str
    plan: str
    devices: int
    captured: Captured
    proof: str
    graph_text: str
    """The model's graph, as it was captured."""
    memory: dict[str, Any] | None = None
    """Of a step, as the compiler tells it."""


def compile_model(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    plan: PlanLike = "data",
    devices: int = 1,
    inputs: str = "global",
    outputs: Asked = "loss",
    precision: str | Precision | None = None,
    device: str | None = None,
    discover: bool = False,
    known_inputs: KnownInputs = None,
) -> tuple[Bundle, Compiled]:
    """Captures a module and compiles it for so many devices. No device is needed, and no weights.

    `device` is the type of the devices, if it is known: autocast depends on it. With `discover` rules are
    looked for, for what runs as it is. The program is for what the model reads of
    `known_inputs`, without names of any, where it has to.
    """
    captured = captured_model(module, args, kwargs, precision_of(precision), device, discover, known_inputs)
    made = make_plan(Graph(captured.graph_text), plan, devices)
    return compile_plan(captured, made, inputs=inputs, outputs=outputs)


def captured_model(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    precision: Precision | None = None,
    device: str | None = None,
    discover: bool = False,
    known_inputs: KnownInputs = None,
    noted: Noted | None = None,
) -> Captured:
    if not isinstance(module, nn.Module):
        raise CaptureError(
            "SW0118",
            f"{module!r} is not a module",
            why="a model is captured by calling a torch.nn.Module",
            fix="give an instance of a subclass of torch.nn.Module",
        )
    captured = capture(
        module, args, kwargs, precision=precision, device=device, known_inputs=known_inputs, noted=noted
    )
    captured.notes += compare_registered(Graph(captured.graph_text))
    if captured.as_python or discover:
        # It imports the runtime, which most captures do without.
        from ..dividing import divide

        divide(module, args, kwargs, captured, device, discover)
    return captured


def compile_plan(
    captured: Captured,
    plan: Plan,
    *,
    inputs: str = "global",
    outputs: Asked = "loss",
    lenient: bool = False,
    watch: Callable[[str], object] | None = None,
    memory: int | str | None = None,
    optimizer: str = OPTIMIZER,
) -> tuple[Bundle, Compiled]:
    """Compiles a plan for a captured module. `watch` is told the name of each phase as it begins.

    What does not fit into the `memory` of a rank, together with the state of an `optimizer`, is refused.

    `lenient` is for another call of a model that is compiled already, which may lack some `outputs`.
    """
    require_one_of("inputs", inputs, ("global", "local"))
    asked = resolve(outputs, captured, Graph(captured.graph_text), lenient=lenient)
    kept = {name: str(dtype) for name, dtype in captured.kept.items()}
    limit = None if memory is None else (memory, optimizer)
    compiled = compile(plan, asked, watch, inputs, limit, kept)
    bundle = Bundle(
        files=dict(compiled.files),
        digest=compiled.digest,
        plan=plan.name,
        devices=plan.devices,
        captured=without_graph(captured),
        proof=compiled.proof,
        graph_text=captured.graph_text,
    )
    return bundle, compiled


def without_graph(captured: Captured) -> Captured:
    """What a program needs of a capture; its graph is a text beside it."""
    return replace(captured, graph_text="", constants=dict(captured.constants))


def require_one_of(argument: str, value: object, known: Sequence[str]) -> None:
    """Refuses a word that an argument does not know."""
    if value not in known:
        choices = " or ".join(f'"{word}"' for word in known)
        raise RuntimeFault(
            "SW0721",
            f"{argument}={value!r} is unknown",
            why="it is not one of the known words",
            fix=f"use {choices}",
        )


def sources(module: nn.Module, captured: Captured) -> dict[str, Tensor]:
    """Every value that a rank may hold a part of, by name: parameters, buffers, constants."""
    tensors: dict[str, Tensor] = dict(captured.constants)
    tensors.update(module.named_buffers(remove_duplicate=False))
    tensors.update(module.named_parameters(remove_duplicate=False))
    return tensors
