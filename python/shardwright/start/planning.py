"""The plan that is meant by a name, a file, a function or a `Plan`. Nothing here needs PyTorch."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._core import Draft, Graph, Plan, plan_devices
from ..errors import ClusterError, PlanError, ShardwrightError, with_article
from .auto_plan import AUTO, Choice

# Beyond this a number is a mistake, and would only fill the memory.
MOST_DEVICES = 1 << 20


PlanLike = str | Path | Plan | Callable[..., Any]


def make_plan(graph: Graph, plan: PlanLike, devices: int | None = None, choice: Choice | None = None) -> Plan:
    """A plan from a name, a plan file's path, a `Plan`, or a function that calls the primitives.

    Without `devices` it is for as many as a plan file, a `Plan` or a name such as `data:4` says.
    `"auto"` is the quickest that is found for a `choice`.
    """
    if plan == AUTO and choice is None:
        raise no_cluster()
    devices = _known_devices(graph, plan) if devices is None else devices
    require_devices(devices)
    if isinstance(plan, Plan):
        made = _for_graph(graph, plan)
    elif isinstance(plan, Path) or (isinstance(plan, str) and _is_file(plan)):
        made = _from_file(graph, Path(plan))
    elif choice is not None and plan == AUTO:
        made = choice.plan(graph, devices)
    elif isinstance(plan, str):
        made = Plan.named(graph, plan, devices)
    elif callable(plan):
        made = _by_function(graph, plan, devices)
    else:
        raise PlanError(
            "SW0312",
            f"{plan!r} is not a plan",
            why=f"it is {with_article(type(plan).__name__)}",
            fix="give a name, a path, a Plan or a function",
        )
    if made.devices != devices:
        raise PlanError(
            "SW0313",
            f"the plan `{made.name}` is for {made.devices} devices, but {devices} are here",
            why="every rank of the process group runs one device's part of the plan",
            fix=f"use {made.devices} devices, or a plan for {devices}" + _as_unit(made.devices, devices),
        )
    return made


def require_devices(devices: int) -> None:
    if not 0 < devices <= MOST_DEVICES:
        raise PlanError(
            "SW0315",
            f"there is no plan for {devices} devices",
            why="a plan has at least one device, and no more than can be listed",
            fix=f"give a number of devices from 1 to {MOST_DEVICES}",
        )


def no_cluster() -> ClusterError:
    return ClusterError(
        "SW0924",
        "it is not said for which cluster a plan is to be chosen",
        why="what is quickest depends on devices and links",
        fix="name a cluster, such as dgx-h100:8x4, or its file; or name a plan, such as data",
    )


def stated_devices(graph: Graph, plan: PlanLike) -> int | None:
    """For how many a plan says that it is."""
    if plan == AUTO:
        return None
    if isinstance(plan, Plan):
        return plan.devices
    if isinstance(plan, Path) or (isinstance(plan, str) and _is_file(plan)):
        return _from_file(graph, Path(plan)).devices
    return plan_devices(plan) if isinstance(plan, str) else None


def _known_devices(graph: Graph, plan: PlanLike) -> int:
    stated = stated_devices(graph, plan)
    if stated is None:
        named = f"`{plan}`" if isinstance(plan, str) else "a plan function"
        raise PlanError(
            "SW0330",
            f"it is not said for how many devices {named} is",
            why="a plan file says it, and a name with all sizes, such as `data:2 x megatron:4`",
            fix="give the number of devices",
        )
    return stated


def _as_unit(unit: int, devices: int) -> str:
    return "" if devices % unit else f", or give devices={unit} to run it on {devices // unit} units"


def _for_graph(graph: Graph, plan: Plan) -> Plan:
    """The same decisions about this graph: a `Plan` refers to the graph that it was made for."""
    try:
        return Plan.parse(graph, plan.text)
    except PlanError as error:
        raise PlanError(
            "SW0317",
            f"the plan `{plan.name}` does not fit this model",
            place=error.place,
            why=error.what,
            fix="make the plan from the graph of this model and these inputs",
        ) from None


def _from_file(graph: Graph, path: Path) -> Plan:
    text = _read(path)
    try:
        return Plan.parse(graph, text)
    except PlanError as error:
        error.place = f"{path}, {error.place}" if error.place else str(path)
        raise


def _by_function(graph: Graph, plan: Callable[..., Any], devices: int) -> Plan:
    """`plan(graph, draft)` walks `graph.operators` and calls `trans`, `assign` and `order` of the draft."""
    from ..capture.lines import place_of_error

    name = getattr(plan, "__name__", "plan")
    draft = Draft(graph, name, devices)
    try:
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        wanted = sum(one.kind in positional for one in inspect.signature(plan).parameters.values())
        result = plan(graph, draft) if wanted == 2 else plan(graph, draft, devices)
    except ShardwrightError:
        raise
    except Exception as error:
        raise PlanError(
            "SW0316",
            f"the plan function `{name}` failed",
            place=place_of_error(error),
            why="".join(traceback.format_exception_only(type(error), error)).strip(),
            fix="it is called with the graph and a draft, and may be given the number of devices as a third",
        ) from error
    if result is None:
        return draft.finish()
    if isinstance(result, Plan):
        return _for_graph(graph, result)
    raise PlanError(
        "SW0316",
        f"the plan function `{name}` returned {result!r}",
        why="a plan function returns a Plan, or nothing after it has decided everything in the draft",
        fix="return nothing",
    )


def _is_file(plan: str) -> bool:
    return plan.endswith(".plan") or "/" in plan


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            "SW0314",
            f"the plan file {path} cannot be read",
            why=getattr(error, "strerror", None) or "it is not text",
            fix="give the path of a plan file, as `shardwright plan` prints one",
        ) from None
