"""A program under a plan of several micro-batches a step, pipelines among them, beside the single device."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import equality
from equality import Result
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources

from .noise import Noise
from .programs import Program

SGD: equality.Updates = (torch.optim.SGD, {"lr": 0.05})
# What a stage holds, what of it is given up, when backward runs and in how many halves.
PIPELINES = [
    ("stages:2 x 1f1b", 2),
    ("stages:2 x gpipe", 2),
    ("stages:2 x zb-h1", 2),
    ("stages:3 x zb-h1", 3),
    ("stages:2 x zb-v", 2),
    ("stages:2 x data:2 x zb-h1", 4),
    ("stages:2 x zero3:2 x zb-h1", 4),
    ("stages:2 x zero3:2 x 1f1b", 4),
    ("stages:2 x zero2:2 x zb-v", 4),
    ("stages:2 x recompute x zb-h1", 2),
    ("stages:2 x zero3:2 x recompute x zb-h1", 4),
    ("stages:2 x interleaved:2", 2),
    ("zero3 x recompute", 2),
    ("zero3", 3),
    ("zero2", 2),
    ("zero1", 2),
    ("zero1", 3),
    ("stages:2 x zero1:2 x 1f1b", 4),
    ("stages:2 x zero1:2 x gpipe", 4),
]


def can_step(program: Program) -> bool:
    """`train_step` takes one loss, and masks of a step are drawn by a key, as no single device does."""
    inputs = [leaf for leaf in program.leaves if leaf.kind == "input"]
    trained = any(leaf.kind in ("param", "tied", "module") and leaf.grad for leaf in program.leaves)
    alone = len(program.losses) == 1 and not program.results and not program.random
    return alone and bool(inputs) and trained and not any(leaf.grad for leaf in inputs)


def batches_of(args: Sequence[Tensor], count: int) -> list[equality.Batch]:
    """Micro-batches that differ in a tensor of numbers, where there is one."""
    batches: list[equality.Batch] = []
    for at in range(count):
        turned = [x.roll(at, -1) if x.dim() and x.is_floating_point() else x for x in args]
        batches.append(tuple(x.detach().clone() for x in turned))
    return batches


def single_device(
    module: torch.nn.Module, batches: Sequence[equality.Batch], steps: int, noise: float = 0.0
) -> Result:
    with Noise(noise):
        return equality.steps_reference(copy.deepcopy(module), batches, steps, SGD)


def on_ranks(
    module: torch.nn.Module, bundle: Any, batches: Sequence[equality.Batch], steps: int, coarse: bool
) -> Result:
    program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
    values = sources(module, bundle.captured)

    def rank(_: int, comm: Any) -> tuple[dict[str, Tensor], list[equality.Held]]:
        model = ParallelModule(program, comm, values, bundle.captured)
        return equality.train_steps(model, batches, steps, SGD)

    ranks = run_local(bundle.devices, rank)
    result = equality.assemble([([], held) for _, held in ranks], coarse=coarse)
    rtol = 1e-4 if coarse else 1e-10
    for losses, _ in ranks:
        for name, loss in losses.items():
            known = result.losses.setdefault(name, loss)
            assert torch.allclose(known, loss, rtol=rtol, atol=1e-14), "ranks disagree about a loss"
    return result
