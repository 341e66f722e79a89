"""nnScaler's headline table with baselines as narrow as in its artefact, and one assumption relaxed each.

What is compared stands in `paper/baselines.json`. Plans are simulated, none is searched.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tables import Table, time_of

from shardwright._core import Graph, Operator, Plan, blocks_of_shape, compile, search_order, simulate_step
from shardwright.shipped.graph import example_of, graph_of
from shardwright.shipped.table import SHIPPED

FOLDER = Path(__file__).parent / "paper"
CONDITIONS = (
    "Two nodes of 16 V100 with 32 GB, links of 150 GB/s inside and 100 Gbit/s between them. Full size on"
    " `meta`, AdamW, 16 bit without float32 masters, every layer recomputed, one sample on a device at"
    " a time. Times are of {} samples. Simulated. The published figures are speed-ups on 32 V100."
)

NOTES = [
    "The baselines are those of the artefact's scripts. For Swin and T5 Alpa is tensor parallelism over all"
    " devices; for T5 on 4 it is free. DeepSpeed is ZeRO-3 over tensor parallelism, with parameters and the"
    " optimizer's state on the host. On 16 and 32 devices both have steps of 16 samples for Swin, whose times"
    " are scaled. Megatron ran for T5 on 4 devices alone.",
    "No script of AlphaFold2 is published. Its model here is the Evoformer of the artefact's history: 48"
    " blocks, 128 sequences of 256 residues. For DAP (dynamic axial parallelism) stands `sequence`, the name"
    " that is nearest to it.",
    "Our names cannot say a ZeRO-3 that waits for each gather of parameters: here they are gathered ahead."
    " The artefact's search balances stages by measured times. Of a few ways to cut Swin into stages the"
    " quickest stands here.",
]


@dataclass(frozen=True)
class Setting:
    """What a step is simulated under."""

    model: str
    devices: int
    cluster: str
    batch: int
    """Samples of a step."""
    samples: int = 1
    """Of a micro-batch."""
    masters: bool = False
    """Whether parameters, their gradients and the optimizer's state are float32."""

    def given(self, said: Mapping[str, Any]) -> Setting:
        ours = {key: value for key, value in said.items() if key in self.__dataclass_fields__}
        return replace(self, **ours)


@dataclass(frozen=True)
class Step:
    plan: str
    seconds: float
    """Of as many samples as all steps are compared by."""
    needed: int
    """Bytes of the device that needs most."""
    fits: bool

    def told(self) -> tuple[str, str, str]:
        memory = f"{self.needed / 1e9:.1f} GB"
        return f"`{self.plan}`", time_of(self.seconds), memory if self.fits else f"{memory}, too much"


def bench(quick: bool) -> list[Table]:
    said = json.loads((FOLDER / "baselines.json").read_text())
    models: Mapping[str, Any] = said["models"]
    if quick:
        models = {"T5": {**models["T5"], "sizes": models["T5"]["sizes"][:1], "relaxed": []}}
    return [_restricted(said, models), _relaxed(said, models)]


def _restricted(said: Mapping[str, Any], models: Mapping[str, Any]) -> Table:
    table = Table(
        "paper-baselines",
        "Models of the paper against its baselines",
        CONDITIONS.format(said["batch"]),
        [
            *("model", "devices", "the paper's plan", "step", "memory"),
            *("baseline", "plan", "step", "memory", "times as fast", "published"),
        ],
    )
    for name, model in models.items():
        for size in model["sizes"]:
            ours, others = _compared(said, size, {})
            table.values[f"{name} {size['devices']}"] = {"paper": vars(ours), **_values(others)}
            for at, (title, other) in enumerate(others.items()):
                here = (size["model"], str(size["devices"]), *ours.told()) if at == 0 else ("",) * 5
                published = f"{model['published']}" if at == 0 and size["devices"] == 32 else ""
                table.add(*here, title, *other.told(), _ratio(ours, {title: other}), published)
    table.notes += NOTES
    return table


def _relaxed(said: Mapping[str, Any], models: Mapping[str, Any]) -> Table:
    table = Table(
        "paper-relaxed",
        "What makes the difference",
        "The rows of 32 devices above, with one thing changed at a time, against the quickest baseline"
        " that fits.",
        ["model", "changed", "the paper's plan, step", "memory", "baseline", "step", "times as fast"],
    )
    for name, model in models.items():
        for change in [{"what": "nothing"}, *model["relaxed"]] if model["relaxed"] else []:
            devices = change.get("devices", model["sizes"][-1]["devices"])
            size = next(size for size in model["sizes"] if size["devices"] == devices)
            ours, others = _compared(said, size, change)
            best = _best(others.values())
            cells = (f"`{best.plan}`", time_of(best.seconds)) if best else ("none fits", "")
            table.add(name, change["what"], *ours.told()[1:], *cells, _ratio(ours, others))
            table.values[f"{name}: {change['what']}"] = {"paper": vars(ours), **_values(others)}
    return table


def _compared(
    said: Mapping[str, Any], size: Mapping[str, Any], change: Mapping[str, Any]
) -> tuple[Step, dict[str, Step]]:
    """The paper's plan, and each baseline, where a row of the file is changed so."""
    setting = Setting(size["model"], size["devices"], said["cluster"], said["batch"])
    changed = {key: value for key, value in change.items() if key not in ("paper", "baselines", "what")}

    def quickest(asked: Mapping[str, Any]) -> Step:
        here = setting.given(asked).given(changed)
        steps = [_step(here, said["batch"], plan, asked) for plan in asked["plans"]]
        return _best(steps) or min(steps, key=lambda step: step.needed)

    baselines = {name: quickest(asked) for name, asked in change.get("baselines", size["baselines"]).items()}
    return quickest(change.get("paper", size["paper"])), baselines


def _step(setting: Setting, batch: int, name: str, asked: Mapping[str, Any]) -> Step:
    """`batch` are the samples that all times are of."""
    graph = _graph(setting.model, setting.samples)
    text = (FOLDER / setting.cluster).read_text()
    plan = Plan.named(graph, name, setting.devices)
    if "layers" in asked:
        plan, name = _cut(graph, plan, name, asked["layers"], asked.get("coshard"))
    if "order" in asked:
        plan, name = _ordered(graph, plan, name, asked["order"])
    kept = dict.fromkeys(_parameters(graph), "torch.float32") if setting.masters else None
    batches = setting.batch // setting.samples
    step = simulate_step(plan, compile(plan, kept=kept), setting.cluster, text, batches=batches, kept=kept)
    there = [*step.memory, *step.on_host]
    return Step(
        name,
        step.seconds * batch / setting.batch,
        max(needed for needed, _ in step.memory),
        all(needed <= most for needed, most in there),
    )


def _cut(
    graph: Graph, named: Plan, name: str, layers: Mapping[str, Any], coshard: Mapping[str, Any] | None
) -> tuple[Plan, str]:
    """A pipeline with so many layers in each stage, some of them co-sharded as `coshard` does it in all.

    The artefact's search balances stages by what they take; those of a name have the same operations."""

    def inside(path: str) -> bool:
        return coshard is not None and any(path.startswith(f"{module}.") for module in coshard["modules"])

    parts = f" x coshard:{coshard['parts']}" if coshard else ""
    everywhere = Plan.named(graph, name + parts, named.devices)
    counts: Sequence[int] = layers["each"]
    each = named.devices // len(counts)
    ends = [sum(counts[: at + 1]) for at in range(len(counts))]
    lines = ["shardwright-plan 1", f"devices {named.devices}", "schedule 1f1b"]
    blocks: list[list[str]] = [[] for _ in counts]
    seen: dict[str, int] = {}
    for whole, apart in zip(named.decisions, everywhere.decisions, strict=True):
        operator, splits, devices = apart if inside(apart[0].path) else whole
        layer = re.match(layers["path"], operator.path)
        if layer:
            seen.setdefault(layer.group(), len(seen))
        stage = next(at for at, end in enumerate(ends) if len(seen) <= end)
        blocks[stage].append(operator.name)
        split = ", ".join(f"split {dim} {parts}" for dim, parts in splits)
        split = split.replace("split replicate", "replicate") or "single"
        here = [str(stage * each + device % each) for device in devices]
        lines.append(f"op %{operator.name}: {split} on {' '.join(here)}")
    lines += [f"block %{names[0]}..%{names[-1]}" for names in blocks]
    spans = [_names(span) for span in named.recompute]
    within = [span for span in everywhere.recompute if all(inside(operator.path) for operator in span)]
    spans += [names for names in map(_names, within) if names not in spans]
    lines += ["recompute " + " ".join(f"%{operator}" for operator in names) for names in spans]
    plan = Plan.parse(graph, "\n".join(lines) + "\n")
    words = f", coshard:{coshard['parts']} in {coshard['called']}" if coshard else ""
    return plan, f"{name}, {'+'.join(map(str, counts))} layers{words}"


def _names(span: Sequence[Operator]) -> tuple[str, ...]:
    return tuple(operator.name for operator in span)


def _ordered(graph: Graph, named: Plan, name: str, shape: str) -> tuple[Plan, str]:
    """The plan in the order with the fewest bubbles of a shape of Tessel's: its devices are stages."""
    stages = int(name.split(" x ")[0].removeprefix("stages:"))
    each = named.devices // stages
    timetable = search_order(blocks_of_shape(shape, stages), 8 * stages).timetable
    assert timetable is not None, shape
    tasks_of = [line.split()[1:] for line in timetable.replace("timetable ", "").splitlines()]
    lines = ["shardwright-plan 1", f"devices {named.devices}", f'use "{name}"']
    for at, tasks in enumerate(tasks_of):
        # All devices also hand on their shares of what is looked up, in the block that reads it.
        first = tasks[0].removeprefix("F0")
        known = {task.split("+")[0] for task in tasks}
        more = [f"{task}{first}" for task in _tasks(named, at * each) if task not in known]
        own = [task for task in tasks if task.startswith("F") and task.endswith(first)]
        begin = sorted({*more, *own})
        rest = [task for task in tasks if task not in begin]
        lines.append(f"timetable {at * each}..{(at + 1) * each}: {' '.join([*begin, *rest])}")
    return Plan.parse(graph, "\n".join(lines) + "\n"), f"{name}, Tessel's order"


def _tasks(plan: Plan, rank: int) -> list[str]:
    """What a rank does of each micro-batch: `F1` is the forward of block 1."""
    for line in compile(plan).timetable(1).splitlines():
        if re.match(rf"ranks? {rank}(\.\.| )", line):
            return [f"{kind}{block}" for block, kind in re.findall(r"(\d+)([FB])0", line)]
    raise ValueError(f"rank {rank} is not drawn")


@functools.lru_cache(maxsize=1)
def _graph(model: str, samples: int) -> Graph:
    return Graph(graph_of(example_of(SHIPPED[model], samples, None)).text)


def _parameters(graph: Graph) -> Sequence[str]:
    return re.findall(r'^param %\S+ \S+ "(.*)"$', graph.text, re.MULTILINE)


def _best(steps: Any) -> Step | None:
    return min((step for step in steps if step.fits), key=lambda step: step.seconds, default=None)


def _ratio(ours: Step, others: Mapping[str, Step]) -> str:
    best = _best(others.values())
    return f"{best.seconds / ours.seconds:.2f}" if best and ours.fits else ""


def _values(others: Mapping[str, Step]) -> dict[str, Any]:
    return {name: vars(step) for name, step in others.items()}
