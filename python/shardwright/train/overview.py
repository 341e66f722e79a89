"""What TensorBoard is told at the start: the plan, what is predicted of a step, and where its picture is.

TensorBoard shows pictures of pixels only. The timeline is lines and words, so it lies beside as SVG.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._core import Compiled, Graph, Plan, Simulated, compile, simulate_step, timeline_svg
from ..report.memory import OPTIMIZER, lines_of_memory, memory_of
from ..report.summary import batches_of, count_of, time_of
from ..runtime import ParallelModule
from ..start.auto_plan import cluster_of
from ..start.edited_program import PLAN
from ..start.planning import make_plan
from .config import Config

PROGRAM, PICTURE = "program", "timeline.svg"


@dataclass(frozen=True)
class Overview:
    text: str
    """Markdown."""
    picture: str | None
    """SVG. None without a cluster, which the times are of."""


def program_folder(config: Config, folder: Path) -> str | None:
    """Where the emitted program goes: beside the log if nothing else is said. Its plan is read there."""
    if config.plan.save_to is not None or config.log.tensorboard is None:
        return config.plan.save_to
    return str(folder / config.log.tensorboard / PROGRAM)


def overview_of(model: ParallelModule, config: Config, folder: Path, batches: int) -> Overview:
    """Of a model whose program was written to `program_folder`."""
    place = Path(str(program_folder(config, folder)))
    graph = Graph(model.program.graph)
    plan = make_plan(graph, place / PLAN)
    kept = {name: str(dtype) for name, dtype in model.variants.first.captured.kept.items()}
    compiled = compile(plan, kept=kept)
    cluster = config.plan.cluster
    step = None if cluster is None else _simulated(plan, compiled, cluster, batches, config.plan.compile)
    text = _text(graph, plan, compiled, step, batches, cluster, place)
    if step is None or cluster is None:
        return Overview(text, None)
    return Overview(text, timeline_svg(plan, compiled, step, *cluster_of(cluster), batches=batches))


def _simulated(plan: Plan, compiled: Compiled, cluster: str, batches: int, by_torch: bool) -> Simulated:
    return simulate_step(
        plan, compiled, *cluster_of(cluster), batches=batches, optimizer=OPTIMIZER, compile=by_torch
    )


def _text(
    graph: Graph,
    plan: Plan,
    compiled: Compiled,
    step: Simulated | None,
    batches: int,
    cluster: str | None,
    place: Path,
) -> str:
    devices = count_of(plan.devices, "device")
    lines = [f"{graph.model} under `{plan.name}` on {devices}, {batches_of(batches)} in a step."]
    if step is None:
        lines.append("No step is predicted: the run names no `plan.cluster`.")
    else:
        lines.append(f"On `{cluster}` a step is predicted to take {time_of(step.seconds)}.")
        lines.append(f"Its timeline is `{PICTURE}` in this log's folder: open it in a browser.")
    there = None if step is None else min(there for _, there in step.memory)
    needs = "; ".join(line.strip() for line in lines_of_memory(memory_of(compiled), there))
    lines.append(f"{needs[0].upper()}{needs[1:]}.")
    lines.append(f"The program that runs is in `{place}`, one file for each kind of rank.")
    return "\n\n".join(lines)
