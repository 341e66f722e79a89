"""Programs of all kinds of plans on ranks that share the GPU, beside the single device on the same GPU."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import models
import shardwright as sw
from finding import Finding, Setting
from late import on_threads
from shardwright import Graph
from shardwright.capture import Captured, capture
from shardwright.errors import ShardwrightError
from shardwright.precision import Precision, precision_of
from shardwright.runtime import ParallelModule, load_program
from shardwright.start.compiling import compile_plan, sources

STEPS, BATCHES, RATE = 2, 4, 0.05
PLANS = [
    ("replicate", 2),
    ("data", 2),
    ("megatron", 2),
    ("data:2 x megatron:2", 4),
    ("zero1", 2),
    ("zero2", 2),
    ("zero3 x recompute", 2),
    ("zero3 x offload:parameters", 2),
    ("data x offload:activations", 2),
    ("data x offload:state", 2),
    ("sequence", 2),
    ("zigzag", 2),
    ("ulysses", 2),
    ("megatron-sp", 2),
    ("expert", 2),
    ("stages:2 x 1f1b", 2),
    ("stages:2 x gpipe", 2),
    ("stages:2 x interleaved:2", 2),
    ("stages:2 x zero3:2 x zb-h1", 4),
    ("stages:2 x zb-v", 2),
    ("stages:2 x bidirectional", 2),
    ("stages:2 x tokens", 2),
    ("stages:2 x interlaced", 2),
    ("random:1", 3),
]
# Models whose every plan is tried, and those that try one of each kind.
ALL = ("gpt2", "llama")
SOME = ("data", "megatron", "zero3 x recompute", "stages:2 x zero3:2 x zb-h1", "expert", "random:1")
DRY = ("data", "zero3 x recompute", "stages:2 x zero3:2 x zb-h1", "expert")
NARROW = ("data:2 x megatron:2", "zero3 x recompute", "stages:2 x 1f1b")

HOST = Setting(dry=True, planted=False)


@dataclass
class Subject:
    name: str
    module: nn.Module
    batch: models.Batch
    captured: Captured
    precision: Precision | None = None


def run(setting: Setting, finding: Finding) -> None:
    table = finding.table(
        f"{STEPS} steps of {BATCHES} micro-batches", ["model", "plan", "largest difference", "s"]
    )
    for name, make in models.SMALL.items():
        with finding.trying(name):
            _model(setting, finding, table, name, make)
        if setting.planted:
            return
    with finding.trying("bf16"):
        subject = _subject("llama, bf16", *models.small_llama(), dtype=torch.float32, precision="bf16")
        _plans(setting, finding, table, subject, [p for p in PLANS if p[0] in NARROW], 3e-2)


def _model(setting: Setting, finding: Finding, table: Any, name: str, make: Any) -> None:
    # Grouped products of experts are not there in float64.
    subject = _subject(name, *make(), dtype=torch.float32 if name == "mixtral" else torch.float64)
    every = name in ALL and not setting.dry and not setting.planted
    some = setting.sized(SOME, DRY)
    plans = [plan for plan in PLANS if every or plan[0] in some]
    # Transformers computes the loss in float32.
    tolerance = 2e-4 if name == "mixtral" else 1e-9 if name == "waves" else 1e-6
    _plans(setting, finding, table, subject, plans[:1] if setting.planted else plans, tolerance)


def _subject(
    name: str,
    module: nn.Module,
    batch: models.Batch,
    dtype: torch.dtype = torch.float64,
    precision: str | None = None,
) -> Subject:
    torch.manual_seed(0)
    module = module.to(dtype)
    batch = {key: x.to(dtype) if x.is_floating_point() else x for key, x in batch.items()}
    chosen = precision_of(precision)
    return Subject(name, module, batch, capture(module, (), batch, precision=chosen), chosen)


def _plans(
    setting: Setting, finding: Finding, table: Any, subject: Subject, plans: list[Any], tolerance: float
) -> None:
    batches = [
        {key: x.roll(at, -1).to(setting.device) for key, x in subject.batch.items()} for at in range(BATCHES)
    ]
    # Masks are those of the plan's keys, which no single device draws: they are the same on the host.
    masked = "dropout" in subject.name
    alone = {} if masked else _alone(setting, subject, batches)
    for plan, devices in plans:
        started = time.monotonic()
        with finding.trying(f"{subject.name} under {plan}"):
            try:
                results = _parallel(setting, subject, batches, plan, devices)
            except ShardwrightError as error:
                if not error.code.startswith("SW03"):
                    raise
                table.row(subject.name, plan, f"refused ({error.code})", "-")
                continue
            expected = _parallel(HOST, subject, _host(batches), plan, devices) if masked else alone
            gap = max(_gap(results[key], expected[key]) for key in expected)
            table.row(subject.name, plan, gap, time.monotonic() - started)
            finding.expect(gap <= tolerance, f"{subject.name} under {plan} is off by {gap:.2g}")


def _host(batches: list[models.Batch]) -> list[models.Batch]:
    return [{key: x.cpu() for key, x in batch.items()} for batch in batches]


def _gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    a, b = ours.double().cpu(), theirs.double().cpu()
    gap = float((a - b).norm() / b.norm().clamp_min(1e-6))
    return gap if gap == gap else float("inf")


def _alone(setting: Setting, subject: Subject, batches: list[models.Batch]) -> dict[str, torch.Tensor]:
    module = copy.deepcopy(subject.module).to(setting.device)
    sgd = torch.optim.SGD(module.parameters(), lr=RATE)
    results = {}
    for step in range(STEPS):
        losses = []
        for batch in batches:
            with torch.autocast(setting.device.type, torch.bfloat16, enabled=subject.precision is not None):
                loss = _loss(module(**batch))
            (loss / len(batches)).backward()
            losses.append(loss.detach())
        results[f"loss {step}"] = torch.stack(losses).mean()
        sgd.step()
        sgd.zero_grad()
    return results | {name: p.detach() for name, p in module.named_parameters()}


def _loss(outputs: Any) -> torch.Tensor:
    return outputs if isinstance(outputs, torch.Tensor) else outputs.loss


def _parallel(
    setting: Setting, subject: Subject, batches: list[models.Batch], plan: str, devices: int
) -> dict[str, torch.Tensor]:
    graph = Graph(subject.captured.graph_text)
    kind, _, seed = plan.partition(":")
    drawn = kind == "random"
    made = sw.Plan.random(graph, devices, int(seed)) if drawn else sw.Plan.named(graph, plan, devices)
    bundle, _ = compile_plan(subject.captured, made)
    program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
    values = sources(subject.module, bundle.captured)

    def rank(_: int, comm: Any) -> dict[str, torch.Tensor]:
        model = ParallelModule(program, comm, values, bundle.captured)
        sgd = sw.optimizer(model, torch.optim.SGD, lr=RATE)
        results = {}
        for step in range(STEPS):
            loss = model.train_step(batches)
            assert loss is not None
            results[f"loss {step}"] = loss.detach().clone()
            sgd.step()
            sgd.zero_grad()
        return results | model.full_state_dict(cpu=True)

    ranks = on_threads(bundle.devices, setting.device, rank, forgets=setting.planted)
    for other in ranks[1:]:
        assert torch.equal(other["loss 0"], ranks[0]["loss 0"]), "ranks disagree about the loss"
    return ranks[0]
