"""Runs a program on all its ranks and compares with the single device, tensor by tensor.

*Equal* is, in norms per tensor: `|a - b| <= 1e-9 * max(|b|, 1e-3 * r)`, with r the root mean square
of all tensors' norms of that kind, so that a gradient that is mathematically zero does not need a
loose tolerance.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.runtime.guards.part_gradients import plain
from shardwright.runtime.optimizers.optimizer import optimizer
from shardwright.start.compiling import Bundle, sources

STEPS = 3
Updates = tuple[type[torch.optim.Optimizer], dict[str, float]]
ADAMW: Updates = (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1})
SGD: Updates = (torch.optim.SGD, {"lr": 1e-2})


def single_device(seed: int) -> Callable[[], dict[str, Any]]:
    """For `run`: each rank draws what the single device draws under this seed."""
    return lambda: {"randomness": "single-device", "generator": torch.Generator().manual_seed(seed)}


@dataclass
class Result:
    """What a training run of a few steps leaves."""

    losses: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def kinds(self) -> list[tuple[str, dict[str, Tensor]]]:
        return [
            ("loss", self.losses),
            ("gradient", self.gradients),
            ("parameter", self.parameters),
            ("buffer", self.buffers),
        ]


def scalars(outputs: Any) -> list[Tensor]:
    """The scalar results of a model, in order: its losses."""
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return [x for x in leaves if isinstance(x, Tensor) and x.dim() == 0 and x.is_floating_point()]


def reference(
    module: nn.Module,
    args: Sequence[Any],
    steps: int = STEPS,
    kwargs: Mapping[str, Any] | None = None,
    updates: Updates = ADAMW,
) -> Result:
    """The single device: a few steps of an optimizer; gradients are those of the first step."""
    module, args = copy.deepcopy(module), fresh(args)
    result = Result()
    kind, numbers = updates
    updating = kind(module.parameters(), **numbers)
    for step in range(steps):
        updating.zero_grad()
        step_losses = scalars(module(*args, **(kwargs or {})))
        torch.stack([loss * (1 + 0.5 * at) for at, loss in enumerate(step_losses)]).sum().backward()
        result.losses |= {f"{step}.{at}": loss.detach().clone() for at, loss in enumerate(step_losses)}
        if step == 0:
            result.gradients = {
                name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None
            }
            result.gradients |= {name: grad.clone() for name, grad in of_inputs(args).items()}
        updating.step()
    result.parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    result.buffers = {name: b.clone() for name, b in module.named_buffers()}
    return result


def fresh(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with gradients of their own."""
    return tuple(
        x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.requires_grad else x for x in args
    )


def of_inputs(args: Sequence[Any]) -> dict[str, Tensor]:
    """The gradients of arguments that require one."""
    return {
        f"input {at}": x.grad
        for at, x in enumerate(args)
        if isinstance(x, Tensor) and x.requires_grad and x.grad is not None
    }


@dataclass
class Held:
    """One shard after the run."""

    name: str
    kind: str
    factors: list[list[int]]
    region: Any
    value: Tensor
    gradient: Tensor | None


def train(
    model: ParallelModule,
    args: Sequence[Any],
    steps: int = STEPS,
    kwargs: Mapping[str, Any] | None = None,
    updates: Updates = ADAMW,
) -> tuple[list[list[Tensor]], list[Held]]:
    """The same steps on one rank: losses by step, and what the rank holds at the end."""
    args = fresh(args)
    inputs: dict[str, Tensor] = {}
    kind, numbers = updates
    updating = optimizer(model, kind, **numbers)
    losses: list[list[Tensor]] = []
    gradients: dict[int, Tensor | None] = {}
    for step in range(steps):
        updating.zero_grad()
        step_losses = scalars(model(*args, **(kwargs or {})))
        torch.stack([loss * (1 + 0.5 * at) for at, loss in enumerate(step_losses)]).sum().backward()
        losses.append([loss.detach().clone() for loss in step_losses])
        if step == 0:
            for at, shard in enumerate(model.shards.held):
                grad = shard.data.grad if isinstance(shard.data, nn.Parameter) else None
                gradients[at] = None if grad is None else plain(grad).clone()
            inputs = {name: grad.clone() for name, grad in of_inputs(args).items()}
        updating.step()
    held = held_by(model, gradients)
    for name, grad in inputs.items():
        # Every rank gets the whole gradient.
        region, factors = [(0, size) for size in grad.shape], [[size] for size in grad.shape]
        held.append(Held(name, "input", factors, region, grad, grad))
    return losses, held


# The arguments of one micro-batch, by position or by name.
Batch = tuple[Any, ...] | dict[str, Any]


def micro_batches(batch: Batch, count: int) -> list[Batch]:
    """So many that differ: the first tensor is turned round along its last dim."""
    values = list(batch.values() if isinstance(batch, dict) else batch)
    first = next(at for at, x in enumerate(values) if isinstance(x, Tensor) and x.dim() > 0)
    turned = [[*values[:first], values[first].roll(by, -1), *values[first + 1 :]] for by in range(count)]
    if isinstance(batch, dict):
        return [dict(zip(batch, row, strict=True)) for row in turned]
    return [tuple(row) for row in turned]


def called(module: nn.Module, batch: Batch) -> Any:
    return module(**batch) if isinstance(batch, dict) else module(*batch)


def steps_reference(
    module: nn.Module, batches: Sequence[Batch], steps: int = STEPS, updates: Updates = ADAMW
) -> Result:
    """The single device, several micro-batches a step; gradients are those of the first step."""
    module, result = copy.deepcopy(module), Result()
    kind, numbers = updates
    updating = kind(module.parameters(), **numbers)
    for step in range(steps):
        updating.zero_grad()
        losses = []
        for batch in batches:
            [loss] = scalars(called(module, batch))
            (loss / len(batches)).backward()
            losses.append(loss.detach())
        result.losses[str(step)] = torch.stack(losses).mean()
        if step == 0:
            result.gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
        updating.step()
    result.parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    result.buffers = {name: b.clone() for name, b in module.named_buffers()}
    return result


def train_steps(
    model: ParallelModule, batches: Sequence[Batch], steps: int = STEPS, updates: Updates = ADAMW
) -> tuple[dict[str, Tensor], list[Held]]:
    """The same on one rank, by `train_step`."""
    kind, numbers = updates
    updating = optimizer(model, kind, **numbers)
    losses: dict[str, Tensor] = {}
    gradients: dict[int, Tensor | None] = {}
    for step in range(steps):
        updating.zero_grad()
        loss = model.train_step(list(batches))
        assert loss is not None
        losses[str(step)] = loss
        if step == 0:
            for at, shard in enumerate(model.shards.held):
                grad = shard.data.grad if isinstance(shard.data, nn.Parameter) else None
                gradients[at] = None if grad is None else plain(grad).clone()
        updating.step()
    return losses, held_by(model, gradients)


def run_steps(
    bundle: Bundle,
    module: nn.Module,
    batches: Sequence[Batch],
    steps: int = STEPS,
    options: Callable[[], dict[str, Any]] = dict,
    local: Callable[..., list[Any]] = run_local,
) -> Result:
    """Runs all ranks of a program in this process, several micro-batches a step."""
    program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
    values = sources(module, bundle.captured)

    def rank(rank: int, comm: Any) -> tuple[dict[str, Tensor], list[Held]]:
        model = ParallelModule(program, comm, values, bundle.captured, **options())
        return train_steps(model, batches, steps)

    of_ranks = local(bundle.devices, rank)
    result = assemble([([], held) for _, held in of_ranks])
    for losses, _ in of_ranks:
        for name, loss in losses.items():
            known = result.losses.setdefault(name, loss)
            assert torch.equal(known, loss), "ranks disagree about a loss"
    return result


def held_by(model: ParallelModule, gradients: Mapping[int, Tensor | None]) -> list[Held]:
    """The shards of a rank as they are now, with gradients by their number."""
    return [
        Held(
            shard.tensor.names[0],
            shard.tensor.kind,
            shard.tensor.factors,
            shard.region,
            shard.data.detach().clone(),
            gradients[at],
        )
        for at, shard in enumerate(model.shards.held)
    ]


def run(
    bundle: Bundle,
    module: nn.Module,
    args: Sequence[Any],
    steps: int = STEPS,
    options: Callable[[], dict[str, Any]] = dict,
    kwargs: Mapping[str, Any] | None = None,
    updates: Updates = ADAMW,
    around: Callable[[int], AbstractContextManager[object]] = lambda rank: nullcontext(),
    coarse: bool = False,
) -> Result:
    """Runs all ranks of a program in this process; `options` makes those of each rank's module, and its steps
    are made in what `around` gives for it."""
    program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
    values = sources(module, bundle.captured)

    def rank(rank: int, comm: Any) -> tuple[list[list[Tensor]], list[Held]]:
        model = ParallelModule(program, comm, values, bundle.captured, **options())
        with around(rank):
            return train(model, args, steps, kwargs, updates)

    return assemble(run_local(bundle.devices, rank), coarse)


def assemble(ranks: Sequence[tuple[list[list[Tensor]], list[Held]]], coarse: bool = False) -> Result:
    """Whole tensors from all ranks' shards. Copies must agree (where float32 was computed with, coarsely),
    and together they cover everything."""
    result = Result()
    for losses, _ in ranks:
        by_name = {f"{step}.{at}": x for step, row in enumerate(losses) for at, x in enumerate(row)}
        for name, loss in by_name.items():
            known = result.losses.setdefault(name, loss)
            assert torch.allclose(known, loss, rtol=1e-12, atol=0), "ranks disagree about a loss"
    for _, held in ranks:
        for shard in held:
            tensors = {"param": result.parameters, "buffer": result.buffers}.get(shard.kind)
            if tensors is not None:
                put(tensors, shard, shard.value, coarse)
            if shard.gradient is not None:
                put(result.gradients, shard, shard.gradient, coarse)
    for kind, wholes in result.kinds():
        for name, whole in wholes.items():
            if whole.is_floating_point():
                assert not whole.isnan().any(), f"{kind} {name} is not covered by the ranks' shards"
    return result


def put(tensors: dict[str, Tensor], shard: Held, value: Tensor, coarse: bool = False) -> None:
    shape = [int(torch.tensor(dim).prod()) if dim else 1 for dim in shard.factors]
    flat = [size for dim in shard.factors for size in dim]
    missing = torch.full(shape, float("nan") if value.is_floating_point() else -(2**40)).to(value.dtype)
    whole = tensors.setdefault(shard.name, missing)
    index = tuple(slice(lo, hi) for lo, hi in shard.region)
    view = whole.view(flat)
    piece = value.reshape([hi - lo for lo, hi in shard.region])
    there = view[index]
    if value.is_floating_point():
        known = ~there.isnan()
        rtol, atol = (1e-4, 1e-6) if coarse else (1e-10, 1e-14)
        assert torch.allclose(there[known], piece[known], rtol=rtol, atol=atol), (
            f"copies of {shard.name} differ"
        )
    view[index] = piece


def differences(ours: Result, theirs: Result, tolerance: float = 1e-9) -> list[str]:
    """What is not equal."""
    other = [
        f"{kind}: other names: {sorted(a.keys() ^ b.keys())}"
        for (kind, a), (_, b) in zip(ours.kinds(), theirs.kinds(), strict=True)
        if a.keys() != b.keys()
    ]
    return other + [
        f"{name}: |a - b| = {gap:.3g} > {tolerance * size:.3g}"
        for name, gap, size in gaps(ours, theirs)
        if not gap <= tolerance * size
    ]


def gaps(ours: Result, theirs: Result) -> Iterator[tuple[str, float, float]]:
    """How far each tensor of both is from the other, and what that is compared with."""
    for (kind, a), (_, b) in zip(ours.kinds(), theirs.kinds(), strict=True):
        norms = {name: float(x.double().norm()) for name, x in b.items()}
        typical = (sum(n * n for n in norms.values()) / max(len(norms), 1)) ** 0.5
        for name in b if a.keys() == b.keys() else ():
            gap = float((a[name].double() - b[name].double()).norm())
            yield f"{kind} {name}", gap, max(norms[name], 1e-3 * typical)


def assert_equal(ours: Result, theirs: Result, what: str = "") -> None:
    differing = differences(ours, theirs)
    assert not differing, f"{what}\n" + "\n".join(differing[:12])
