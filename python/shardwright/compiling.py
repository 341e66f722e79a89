"""From a module and a plan to a proved program: capture, then everything that Rust decides."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ._core import Compiled, Draft, Graph, Plan, compile
from .capture import Captured, capture
from .errors import PlanError

PlanLike = str | Path | Plan | Callable[..., Any]


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
    """The graph that the program was proved against."""


def compile_model(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    plan: PlanLike = "data",
    devices: int = 1,
    outputs: str = "loss",
) -> tuple[Bundle, Compiled]:
    """Captures a module and compiles it for so many devices. No device is needed, and no weights."""
    captured = capture(module, args, kwargs)
    graph = Graph(captured.graph_text)
    made = make_plan(graph, plan, devices)
    compiled = compile(made, outputs)
    bundle = Bundle(
        files=dict(compiled.files),
        digest=compiled.digest,
        plan=made.name,
        devices=made.devices,
        captured=replace(captured, graph_text="", constants={}),
        proof=compiled.proof,
        graph_text=compiled.graph_text,
    )
    bundle.captured.constants.update(captured.constants)
    return bundle, compiled


def make_plan(graph: Graph, plan: PlanLike, devices: int) -> Plan:
    """A plan from a name, a plan file's path, a `Plan`, or a function that calls the primitives."""
    if isinstance(plan, Plan):
        made = plan
    elif isinstance(plan, Path) or (isinstance(plan, str) and _is_file(plan)):
        made = Plan.parse(graph, _read(Path(plan)))
    elif isinstance(plan, str):
        made = Plan.named(graph, plan, devices)
    elif callable(plan):
        made = _by_function(graph, plan, devices)
    else:
        raise PlanError("SW0312", f"{plan!r} is not a plan", fix="give a name, a path, a Plan or a function")
    if made.devices != devices:
        raise PlanError(
            "SW0313",
            f"the plan `{made.name}` is for {made.devices} devices, but {devices} are here",
            why="every rank of the process group runs one device's part of the plan",
            fix=f"start {made.devices} processes, or plan for {devices} devices",
        )
    return made


def _by_function(graph: Graph, plan: Callable[..., Any], devices: int) -> Plan:
    """`plan(graph, draft)` walks `graph.operators` and calls `trans`, `assign` and `order` of the draft."""
    draft = Draft(graph, getattr(plan, "__name__", "plan"), devices)
    wanted = len(inspect.signature(plan).parameters)
    result = plan(graph, draft) if wanted == 2 else plan(graph, draft, devices)
    return result if isinstance(result, Plan) else draft.finish()


def _is_file(plan: str) -> bool:
    return plan.endswith(".plan") or "/" in plan


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise PlanError("SW0314", f"the plan file {path} cannot be read", why=error.strerror) from None


def sources(module: nn.Module, captured: Captured) -> dict[str, Tensor]:
    """Every value that a rank may hold a part of, by name: parameters, buffers, constants."""
    found: dict[str, Tensor] = dict(captured.constants)
    found.update(module.named_buffers(remove_duplicate=False))
    found.update(module.named_parameters(remove_duplicate=False))
    return found
