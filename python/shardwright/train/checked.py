"""`--check`: capture, plan, proof and an estimate, before anybody pays for devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from .._core import Graph, Plan, cluster_devices, compile, simulate_step
from ..constraints import constraints_of
from ..errors import PlanError
from ..precision import precision_of
from ..report.memory import OPTIMIZER, size_of, status_of
from ..report.summary import batches_of
from ..runtime.execution.inputs import arguments_of
from ..start.auto_plan import AUTO, Choice, cluster_of
from ..start.micro_batch_search import Cutting
from ..start.micro_batches import Parts, refuse_unchosen
from ..start.planning import make_plan
from .batches import tokens_of
from .building import module_of
from .config import Config
from .loop import data_of


def lines_of(config: Config, folder: Path, devices: int | None) -> tuple[list[str], int]:
    """What is said, and the status: `DOES_NOT_FIT` where a step does not."""
    batch = data_of(config, folder).train.first()
    module = module_of(config.model, config.seed, folder)
    parts = Parts(module, arguments_of(batch), {"precision": precision_of(config.precision)})
    plan, number = _planned(config, parts, devices)
    compiled = compile(plan)
    lines = [
        f"{type(module).__name__} under {plan.name} on {plan.devices} devices: proved equal to the model",
        f"a batch is {config.data.batch} samples, {tokens_of(batch):,} tokens, {batches_of(number)}",
    ]
    most = max(compiled.memory(OPTIMIZER), key=lambda rank: rank.total)
    lines.append(f"memory: at most {size_of(most.total)} on a device, with the state of {OPTIMIZER}")
    if config.plan.cluster is None:
        return [*lines, "time: not known without `plan.cluster`"], 0
    step = simulate_step(plan, compiled, *cluster_of(config.plan.cluster), batches=number)
    status = status_of(step)
    there = size_of(min(there for _, there in step.memory))
    lines.append(f"a step takes {step.seconds:.3g} s on {config.plan.cluster}")
    lines.append(f"it {'does not fit' if status else 'fits'}: a device has {there}")
    return lines, status


def _planned(config: Config, parts: Parts, devices: int | None) -> tuple[Plan, int]:
    """The plan of the run, and into how many micro-batches a batch is cut."""
    number: Any = config.plan.micro_batches
    chooses = config.plan.name == AUTO
    if number == "auto":
        refuse_unchosen(chooses, "global")

    def graph_of(count: int) -> Graph:
        return Graph(parts.captured(count).graph_text)

    if not chooses:
        return make_plan(graph_of(number), config.plan.name, devices), number
    choice = _choice(config)
    devices = cluster_devices(choice.cluster, choice.text) if devices is None else devices
    if number == "auto":
        cut = Cutting(parts.rows, devices, choice, graph_of, lambda said: None).best()
        return cut.search.plan(0), cut.parts
    return replace(choice, batches=number).plan(graph_of(number), devices), number


def _choice(config: Config) -> Choice:
    if config.plan.cluster is None:
        raise PlanError(
            "SW0855",
            "the plan of a check is `auto`, and there is no cluster that it is for",
            why="a check sees no devices, and what is quickest depends on them",
            fix="name the cluster: `--set plan.cluster=dgx-h100:8x1`; or a plan: `--set plan.name=zero3`",
        )
    constraints = constraints_of(config.plan.constraints)
    return Choice(*cluster_of(config.plan.cluster), memory=config.plan.memory, constraints=constraints)
