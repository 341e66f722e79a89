"""Between the shards of the ranks and the state dict of the single-device model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ...errors import RuntimeFault
from ..communication.comm import Comm
from ..programs.program import Program, TensorInfo
from ..programs.regions import Region, contains, local_factors, numel, shape_of, window
from .shards import Shard, Shards, own_copy

# All names of a tensor in the state dict.
Names = Callable[[TensorInfo], list[str]]


def full_state_dict(
    shards: Shards, comm: Comm, names: Names, *, rank0_only: bool = False, cpu: bool = False
) -> dict[str, Tensor]:
    """Gathered tensor by tensor; tied names share one tensor, as in the model."""
    full: dict[str, Tensor] = {}
    for tensor in shards.program.saved_tensors():
        if rank0_only:
            gathered = gather_to_rank_0(shards, comm, tensor, cpu=cpu)
        else:
            gathered = gather(shards, comm, tensor, lambda shard: shard.data.detach())
        if gathered is not None:
            full.update(dict.fromkeys(names(tensor), gathered.cpu() if cpu else gathered))
    return full


def load_full_state_dict(
    shards: Shards, full: Mapping[str, Tensor], names: Names, *, strict: bool = True
) -> tuple[list[str], list[str]]:
    """All or nothing: a state dict that does not fit changes no shard.

    Unless it is strict, names may be missing and unknown; these are returned.
    """
    missing, unknown = _refuse_misfits(shards.program.saved_tensors(), full, names, strict)
    with torch.no_grad():
        for shard in shards.held:
            name = next((name for name in names(shard.tensor) if name in full), None)
            if shard.tensor.saved and name is not None:
                shard.data.copy_(own_copy(full[name], shard.tensor, shard.region, shard.data.device))
    return missing, unknown


def owners(program: Program, tensor: TensorInfo) -> list[tuple[int, Region]]:
    """Shards that together are the tensor: for each region the first rank that has it."""
    owned: list[tuple[int, Region]] = []
    held = [
        (rank, region)
        for rank, table in enumerate(program.ranks)
        for number, region in table.shards
        if number == tensor.id
    ]
    # Large ones first: what lies inside of them is not needed.
    for rank, region in sorted(held, key=lambda entry: -numel(entry[1])):
        if not any(contains(other, region) for _, other in owned):
            owned.append((rank, region))
    return owned


def gather(shards: Shards, comm: Comm, tensor: TensorInfo, value: Callable[[Shard], Tensor]) -> Tensor:
    """A whole tensor on every rank: the data of its shards, or another value that each has."""
    full = torch.zeros(tensor.shape, dtype=tensor.dtype, device=comm.device)
    for rank, region in owners(shards.program, tensor):
        factors = local_factors(region, tensor.factors)
        part = torch.empty(shape_of(factors), dtype=tensor.dtype, device=comm.device)
        if rank == comm.rank:
            mine = (value(s) for s in shards.held if s.tensor.id == tensor.id and s.region == region)
            part.copy_(next(mine))
        if comm.world > 1 and part.numel():
            comm.broadcast(part, rank)
        there = window(full, tensor.factors, region)
        there.copy_(part.view(there.shape))
    return full


def gather_to_rank_0(
    shards: Shards,
    comm: Comm,
    tensor: TensorInfo,
    *,
    cpu: bool,
    value: Callable[[Shard], Tensor] = lambda shard: shard.data,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    """A whole tensor on rank 0; the others give their parts and nothing else. With `value` it is another one
    that each shard has, in its own `dtype`."""
    device = torch.device("cpu") if cpu else comm.device
    dtype = dtype or tensor.dtype
    full = torch.zeros(tensor.shape, dtype=dtype, device=device) if comm.rank == 0 else None
    for rank, region in owners(shards.program, tensor):
        if comm.rank not in (0, rank) or not numel(region):
            continue
        mine = (value(s) for s in shards.held if s.tensor.id == tensor.id and s.region == region)
        part = next(mine).detach().to(dtype).contiguous() if rank == comm.rank else None
        part = _sent_to_rank_0(comm, part, shape_of(local_factors(region, tensor.factors)), dtype, rank)
        if full is not None:
            there = window(full, tensor.factors, region)
            there.copy_(part.view(there.shape))
    return full


def _sent_to_rank_0(
    comm: Comm, part: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, rank: int
) -> Tensor:
    """As bytes: some backends do not move all types."""
    if part is not None:
        if rank != 0:
            comm.exchange({0: part.to(comm.device).view(-1).view(torch.uint8)}, {})
        return part
    part = torch.empty(shape, dtype=dtype, device=comm.device)
    comm.exchange({}, {rank: part.view(-1).view(torch.uint8)})
    return part


def _refuse_misfits(
    tensors: list[TensorInfo], full: Mapping[str, Tensor], names: Names, strict: bool
) -> tuple[list[str], list[str]]:
    known = {name: tensor for tensor in tensors for name in names(tensor)}
    missing = [" or ".join(names(t)) for t in tensors if not any(name in full for name in names(t))]
    extra = [name for name in full if name not in known]
    misshapen = [
        f"{name} is {tuple(value.shape)}, the model has {known[name].shape}"
        for name, value in full.items()
        if name in known and tuple(value.shape) != known[name].shape
    ]
    misfits = [("missing", missing), ("unknown", extra), ("of another shape", misshapen)]
    if misshapen or (strict and (missing or extra)):
        raise RuntimeFault(
            "SW0710",
            "the state dict does not fit the model",
            why="; ".join(f"{label}: {', '.join(listed)}" for label, listed in misfits if listed),
            fix="load the state dict of the model that was compiled",
        )
    return missing, extra
