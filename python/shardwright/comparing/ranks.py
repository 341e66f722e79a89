"""The same step of a compiled program, on local ranks: processes on Gloo, or threads of this process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..capture import Captured
from ..runtime import Comm, ParallelModule, TorchComm, launch, load_program, optimizer, run_local
from ..runtime.execution.inputs import Arguments
from ..runtime.guards.part_gradients import plain
from ..runtime.programs.parts import output_parts
from ..runtime.programs.regions import Factors, Region
from ..start.micro_batches import Cut, made
from .step import RATE, Values, fresh, keep_inputs, leaves_of, sum_of


@dataclass(frozen=True)
class Job:
    """All that a rank needs, but for the values of the model."""

    files: dict[str, str]
    digest: str
    graph: str
    devices: int
    captured: Captured
    skeleton: nn.Module
    batches: Sequence[Arguments]
    seed: int
    training: bool
    cut: Cut | None = None
    by_call: bool = False
    """Whether the model is called, and all results compared; else it makes a `train_step`."""
    forward_only: bool = False


@dataclass(frozen=True)
class Part:
    """What a rank has of a tensor."""

    kind: str
    name: str
    factors: Factors
    region: Region
    value: Tensor | None


@dataclass
class Rank:
    """What a rank has after the step, whole or in parts."""

    whole: Values = field(default_factory=Values)
    parts: list[Part] = field(default_factory=list)


def steps_of_ranks(
    jobs: Sequence[Job], values: Sequence[Mapping[str, Tensor]], processes: bool
) -> list[list[Rank]]:
    """For each job what every rank has after it. All jobs are for as many ranks: processes start once."""
    if not processes:
        return [_on_threads(job, rank_values) for job, rank_values in zip(jobs, values, strict=True)]
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        for number, rank_values in enumerate(values):
            torch.save(dict(rank_values), Path(folder, f"values-{number}.pt"))
        launch(_in_process, devices=jobs[0].devices, args=(list(jobs), folder), device="cpu")
        return [
            [_read(_file(folder, number, rank)) for rank in range(job.devices)]
            for number, job in enumerate(jobs)
        ]


def _on_threads(job: Job, values: Mapping[str, Tensor]) -> list[Rank]:
    return run_local(job.devices, lambda rank, comm: _step(job, dict(values), comm))


def _in_process(rank: int, jobs: Sequence[Job], folder: str) -> None:
    for number, job in enumerate(jobs):
        values = torch.load(Path(folder, f"values-{number}.pt"), weights_only=True, mmap=True)
        result = _step(job, values, TorchComm())
        parts = [(p.kind, p.name, p.factors, p.region, p.value) for p in result.parts]
        torch.save((result.whole.by_kind, parts), _file(folder, number, rank))


def _file(folder: str, number: int, rank: int) -> Path:
    return Path(folder, f"{number}-of-rank-{rank}.pt")


def _read(file: Path) -> Rank:
    whole, parts = torch.load(file, weights_only=True)
    return Rank(Values(whole), [Part(*part) for part in parts])


def _step(job: Job, values: dict[str, Tensor], comm: Comm) -> Rank:
    program = load_program(job.files, digest=job.digest, world=job.devices, graph=job.graph)
    model = ParallelModule(
        program,
        comm,
        values,
        job.captured,
        randomness="single-device",
        generator=torch.Generator().manual_seed(job.seed),
        training=job.training,
        skeleton=job.skeleton,
        example=job.batches[0],
        micro_batches=None if job.cut is None else made(job.cut, job.captured),
    )
    if job.forward_only:
        return _forward(model, job)
    return _by_call(model, job) if job.by_call else _by_step(model, job)


def _forward(model: ParallelModule, job: Job) -> Rank:
    args, kwargs = job.batches[0]
    with torch.no_grad():
        results = leaves_of(model(*args, **kwargs))
    return Rank(parts=_outputs(model, results))


def _by_call(model: ParallelModule, job: Job) -> Rank:
    result = Rank()
    [batch] = job.batches
    args, kwargs = fresh(batch)
    results = leaves_of(model(*args, **kwargs))
    loss = sum_of(results)
    if loss is not None:
        result.whole.put("loss", "loss", loss.detach())
        if loss.requires_grad:
            loss.backward()
    result.parts += _outputs(model, results)
    keep_inputs(result.whole, (args, kwargs))
    result.parts += _held(model)
    return result


def _by_step(model: ParallelModule, job: Job) -> Rank:
    result = Rank()
    calls = [fresh(batch) for batch in job.batches]
    loss = model.train_step([_batch(call) for call in calls])
    if model.program.goes_on:
        loss = model.finish()
    if loss is not None:
        result.whole.put("loss", "loss", loss.detach())
    result.parts += _held(model)
    return result


def _batch(call: Arguments) -> Any:
    """A call as `train_step` takes it."""
    args, kwargs = call
    return kwargs if kwargs and not args else tuple(args)


def _outputs(model: ParallelModule, results: Sequence[Any]) -> list[Part]:
    names = model.variants.first.captured.output_names()
    parts = []
    for name, result, part in zip(names, results, _by_name(model, names), strict=True):
        if part is not None and isinstance(result, Tensor):
            parts.append(Part("output", name, part.factors, part.region, result.detach().clone()))
    return parts


def _by_name(model: ParallelModule, names: Sequence[str]) -> list[Any]:
    parts = output_parts(model.program, model.comm.rank, list(names))
    return [parts.get(name) for name in names]


def _held(model: ParallelModule) -> list[Part]:
    """Gradients, and then what an optimizer makes of them."""
    gradients = [_gradient(shard.data) for shard in model.shards.held]
    if any(shard.data.requires_grad for shard in model.shards.held):
        optimizer(model, torch.optim.SGD, lr=RATE).step()
    parts = []
    for shard, gradient in zip(model.shards.held, gradients, strict=True):
        kind = {"param": "parameter", "buffer": "buffer"}.get(shard.tensor.kind)
        if kind is None:
            continue
        place = (shard.tensor.names[0], shard.tensor.factors, shard.region)
        parts.append(Part(kind, *place, shard.data.detach().clone()))
        if shard.tensor.kind == "param" and shard.data.requires_grad:
            parts.append(Part("gradient", *place, gradient))
    return parts


def _gradient(data: Tensor) -> Tensor | None:
    grad = data.grad if isinstance(data, nn.Parameter) else None
    return None if grad is None else plain(grad).detach().clone()
