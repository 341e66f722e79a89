"""Which parts of the single-device model's tensors each rank holds, and which of them it writes.

A plain module is a model of which every rank holds everything; it may have parallelized modules
inside. Names are those of the state dict of the single-device model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor, nn

from ..runtime import Comm, LocalComm, ParallelModule, TorchComm
from ..runtime.communication.local import LocalWorld
from ..runtime.programs.boxes import disjoint
from ..runtime.programs.regions import Factors, Region, numel, shape_of, whole
from ..runtime.shards.own_state import parts_are_known


@dataclass(frozen=True)
class Whole:
    """A tensor of the single-device model, with all its names."""

    names: list[str]
    factors: Factors

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.factors)


@dataclass(frozen=True)
class Part:
    """What this rank holds of a tensor; `whole` is the tensor's number."""

    whole: int
    region: Region
    data: Tensor


@dataclass
class Parts:
    """All tensors of a model that are saved, and who holds what: the same on all ranks but `mine`."""

    comm: Comm
    wholes: list[Whole] = field(default_factory=list)
    table: list[list[tuple[int, Region]]] = field(default_factory=list)
    mine: list[Part] = field(default_factory=list)
    parallel: dict[str, ParallelModule] = field(default_factory=dict)
    """The parallelized modules, by the prefix of their names."""
    plain: list[tuple[list[str], Tensor]] = field(default_factory=list)
    """The names and values of what is outside of them."""

    def by_data(self) -> dict[int, Part]:
        """This rank's parts by the identity of their parameter."""
        return {id(part.data): part for part in self.mine}

    def assigned(self) -> list[list[tuple[int, Region]]]:
        """For each rank, pieces of its parts, by the part's number: together every element once.

        Of the ranks that hold the same, the one that has got the least so far.
        """
        holders: list[dict[Region, list[tuple[int, int]]]] = [{} for _ in self.wholes]
        for rank, row in enumerate(self.table):
            for at, (number, region) in enumerate(row):
                holders[number].setdefault(region, []).append((rank, at))
        loads = [0] * len(self.table)
        given: list[list[tuple[int, Region]]] = [[] for _ in self.table]
        for held in holders:
            regions = list(held)
            for number, piece in disjoint(regions):
                rank, at = min(held[regions[number]], key=lambda holder: loads[holder[0]])
                loads[rank] += numel(piece)
                given[rank].append((at, piece))
        return given


def parts_of(module: nn.Module) -> Parts:
    parallel = dict(_parallel(module, ""))
    parts = Parts(_comm(parallel), parallel=parallel)
    parts.table = [[] for _ in range(parts.comm.world)]
    for prefix, model in parallel.items():
        _add_shards(parts, prefix, model)
    _add_plain(parts, module)
    return parts


def _parallel(module: nn.Module, prefix: str) -> Iterator[tuple[str, ParallelModule]]:
    if isinstance(module, ParallelModule):
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from _parallel(child, f"{prefix}{name}.")


def _comm(parallel: dict[str, ParallelModule]) -> Comm:
    for model in parallel.values():
        return model.comm
    if dist.is_available() and dist.is_initialized():
        return TorchComm(watch=False)
    return LocalComm(LocalWorld(1), 0)


def _add_shards(parts: Parts, prefix: str, model: ParallelModule) -> None:
    model._require_finished("a checkpoint is saved or loaded")
    numbers = {}
    for tensor in model.program.saved_tensors():
        numbers[tensor.id] = len(parts.wholes)
        parts.wholes.append(Whole([prefix + name for name in model.names_of(tensor)], tensor.factors))
    for row, table in zip(parts.table, model.program.ranks, strict=True):
        row.extend((numbers[number], region) for number, region in table.shards if number in numbers)
    parts.mine += [
        Part(numbers[shard.tensor.id], shard.region, shard.data)
        for shard in model.shards.held
        if shard.tensor.id in numbers
    ]


def _add_plain(parts: Parts, module: nn.Module) -> None:
    """What is outside of the parallelized modules: whole on every rank."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    with parts_are_known():
        inside = {name for prefix, model in parts.parallel.items() for name in _state_names(model, prefix)}
        state = module.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if name not in inside and isinstance(tensor, Tensor):
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
    for key, tensor in tensors.items():
        factors = [[size] for size in tensor.shape]
        number, region = len(parts.wholes), whole(factors)
        parts.wholes.append(Whole(names[key], factors))
        parts.mine.append(Part(number, region, tensor))
        parts.plain.append((names[key], tensor))
        for row in parts.table:
            row.append((number, region))


def _state_names(model: ParallelModule, prefix: str) -> list[str]:
    return [prefix + name for name in model.state_dict(keep_vars=True)]
