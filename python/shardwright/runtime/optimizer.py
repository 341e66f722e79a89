"""PyTorch's own optimizers over the shards of a rank, and clipping by the norm over all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import RuntimeFault
from .module import ParallelModule
from .program import Program, TensorInfo
from .regions import Region, extents, narrow, whole, within
from .shards import Shards

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)

ELEMENTWISE = {
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adagrad", "Adadelta", "Adamax", "RMSprop", "ASGD",
    "Rprop",
}  # fmt: skip
WHOLE_TENSOR = {"Adafactor", "LBFGS", "Muon"}


def optimizer(
    model: ParallelModule,
    cls: Callable[..., AnyOptimizer],
    params: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> AnyOptimizer:
    """`cls` over this rank's shards.

    `params` are parameter groups: `{"params": [names or globs], ...}`, by the model's own names.
    What no group names is in a last one with the default options. Every rank has the same groups.
    """
    _refuse_whole_tensor_methods(model.program, cls)
    group_of = _assign(model.program, params or [])
    made = [{**group, "params": []} for group in params or []]
    rest: dict[str, Any] = {"params": []}
    for shard in model.shards.held:
        if shard.tensor.trainable:
            at = group_of[shard.tensor.id]
            (rest if at is None else made[at])["params"].append(shard.data)
    if None in group_of.values() or not made:
        made.append(rest)
    return cls(made, **options)


def clip_grad_norm_(model: ParallelModule, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """As `torch.nn.utils.clip_grad_norm_` on the single-device model; all ranks must call this."""
    norm_type = float(norm_type)
    comm = model.comm
    with torch.no_grad():
        total = torch.zeros((), dtype=torch.float64, device=comm.device)
        for at, shard in enumerate(model.shards.held):
            grad = shard.data.grad
            if grad is not None:
                total = _joined(total, _counted(model.shards, at, grad), norm_type)
        if comm.world > 1:
            op = "max" if norm_type == torch.inf else "sum"
            comm.all_reduce(total, tuple(range(comm.world)), op).wait()
        norm = total if norm_type in (torch.inf, 0.0) else total ** (1 / norm_type)
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for shard in model.shards.held:
            if shard.data.grad is not None:
                shard.data.grad.mul_(factor.to(shard.data.grad.dtype))
    return norm


def _joined(total: Tensor, grad: Tensor, norm_type: float) -> Tensor:
    if not grad.numel():
        return total
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    norm: Tensor = torch.linalg.vector_norm(grad, norm_type, dtype=wide).to(total.dtype)
    if norm_type == torch.inf:
        return torch.maximum(total, norm)
    return total + (norm if norm_type == 0 else torch.pow(norm, norm_type))


def _counted(shards: Shards, shard: int, grad: Tensor) -> Tensor:
    """The part of a gradient that no shard before this one has; other ranks' come first."""
    region, earlier = shards.held[shard].region, shards.earlier(shard)
    if region in earlier:
        return grad.new_zeros(0)
    if not earlier:
        return grad
    seen = grad.reshape(extents(region)).clone()
    for overlap in earlier:
        narrow(seen, within(overlap, region)).zero_()
    return seen


def _assign(program: Program, groups: Sequence[Mapping[str, Any]]) -> dict[int, int | None]:
    """For each trainable tensor its group; refuses names that match nothing, or two groups."""
    tensors = [tensor for tensor in program.parameters() if tensor.trainable]
    patterns = [list(group["params"]) for group in groups]
    unused = [p for names in patterns for p in names if not any(_matches(t, p) for t in program.parameters())]
    if unused:
        raise RuntimeFault(
            "SW0716",
            f"no parameter is named {', '.join(map(repr, unused))}",
            fix="parameter groups name the single-device model's parameters, or globs of them",
        )
    chosen: dict[int, int | None] = {}
    for tensor in tensors:
        found = [at for at, names in enumerate(patterns) if any(_matches(tensor, name) for name in names)]
        if len(found) > 1:
            raise RuntimeFault(
                "SW0716",
                f"parameter {tensor.names[0]!r} is in groups {found[0]} and {found[1]} both",
            )
        chosen[tensor.id] = found[0] if found else None
    return chosen


def _matches(tensor: TensorInfo, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in tensor.names)


def _refuse_whole_tensor_methods(program: Program, cls: Callable[..., Any]) -> None:
    name = getattr(cls, "__name__", "")
    split = _split_parameters(program)
    if not split or name in ELEMENTWISE:
        return
    if name in WHOLE_TENSOR:
        raise RuntimeFault(
            "SW0715",
            f"{name} does not work on parts of a tensor",
            why=f"the plan splits {split[0]!r} and {len(split) - 1} more parameters",
            fix="take an elementwise optimizer, or a plan that splits no parameter",
        )
    warnings.warn(
        f"{name or cls} steps on parts of tensors: right only if it treats each element by itself",
        stacklevel=3,
    )


def _split_parameters(program: Program) -> list[str]:
    """Names of parameters of which some rank has only a part."""
    held: list[tuple[int, Region]] = [shard for table in program.ranks for shard in table.shards]
    split = {number for number, region in held if region != whole(program.tensors[number].factors)}
    return [tensor.names[0] for tensor in program.parameters() if tensor.id in split and tensor.trainable]
