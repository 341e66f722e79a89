"""`--check`: capture, plan, proof and an estimate, before anybody pays for devices."""

from __future__ import annotations

from pathlib import Path

from .._core import Graph, compile, simulate_step
from ..errors import PlanError
from ..precision import precision_of
from ..report.memory import size_of
from ..runtime.execution.inputs import arguments_of
from ..start.auto_plan import cluster_of
from ..start.compiling import captured_model
from ..start.planning import make_plan
from .batches import tokens_of
from .building import module_of
from .config import Config
from .loop import data_of


def lines_of(config: Config, folder: Path, devices: int | None) -> tuple[list[str], bool]:
    """What is said, and whether it fits."""
    batches = data_of(config, folder).train
    module = module_of(config.model, config.seed, folder)
    batch = batches.first()
    args, kwargs = arguments_of(batch)
    captured = captured_model(module, args, kwargs, precision_of(config.precision))
    graph = Graph(captured.graph_text)
    if config.plan.name == "auto":
        raise PlanError(
            "SW0855",
            "the plan of a check is `auto`",
            why="`shardwright plan` chooses plans, and says what they are",
            fix="name one: `--set plan.name=zero3`; or `shardwright plan FILE.py:FUNCTION --cluster ...`",
        )
    plan = make_plan(graph, config.plan.name, devices)
    compiled = compile(plan)
    lines = [
        f"{graph.model} under {plan.name} on {plan.devices} devices: proved equal to the model",
        f"a batch is {config.data.batch} samples, {tokens_of(batch):,} tokens",
    ]
    most = max(compiled.memory("adamw"), key=lambda rank: rank.total)
    lines.append(f"memory: at most {size_of(most.total)} on a device, with the state of adamw")
    if config.plan.cluster is None:
        return [*lines, "time: not known without `plan.cluster`"], True
    step = simulate_step(plan, compiled, *cluster_of(config.plan.cluster))
    fits = all(needed <= there for needed, there in (*step.memory, *step.on_host))
    there = size_of(min(there for _, there in step.memory))
    lines.append(f"a step takes {step.seconds:.3g} s on {config.plan.cluster}")
    lines.append(f"it fits: a device has {there}" if fits else f"it does not fit: a device has {there}")
    return lines, fits
