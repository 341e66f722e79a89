"""Exact transfers, region by region: one message for each pair of ranks, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..communication.comm import Comm
from ..programs.program import Exchange, TensorInfo
from ..programs.regions import Place, Region, local_factors, numel, shape_of, within

# What leaves any other value as it is, for operations whose pieces may overlap.
NEUTRAL = {"max": -torch.inf, "min": torch.inf, "any": False, "all": True}


@dataclass
class Target:
    """What this rank gets: its shape, and its pieces in the table's order."""

    shape: tuple[int, ...]
    # For each piece who gives it, which of that rank's it is, and where it belongs.
    arrivals: list[tuple[int, int, Place]] = field(default_factory=list)


@dataclass
class Part:
    """One rank's part in an exchange. Sources and targets are numbered as the rank's own."""

    op: str
    sources: list[Region]
    targets: list[Target]
    # To each rank: of which sources, and where in them.
    sends: dict[int, list[tuple[int, Place]]] = field(default_factory=dict)
    # From each rank: the sizes of the pieces.
    receives: dict[int, list[int]] = field(default_factory=dict)

    def bytes_sent(self, rank: int, element_size: int) -> int:
        pieces = [place for peer, list_ in self.sends.items() if peer != rank for _, place in list_]
        return element_size * sum(place.numel for place in pieces)


def part_of(table: Exchange, tensor: TensorInfo, rank: int) -> Part:
    """Reads one rank's part out of the table."""
    source_at, target_at = _numbers(table.sources), _numbers(table.targets)
    sources = [region for owner, region in table.sources if owner == rank]
    targets = [region for owner, region in table.targets if owner == rank]
    shapes = [shape_of(local_factors(region, tensor.factors)) for region in targets]
    part = Part(table.op, sources, [Target(shape) for shape in shapes])

    def place(region: Region, frame: Region) -> Place:
        return Place.from_region(local_factors(frame, tensor.factors), within(region, frame))

    for source, target, region in table.pieces:
        giver, taker = table.sources[source][0], table.targets[target][0]
        if giver == rank:
            at = source_at[source]
            part.sends.setdefault(taker, []).append((at, place(region, sources[at])))
        if taker == rank:
            received = part.receives.setdefault(giver, [])
            at = target_at[target]
            part.targets[at].arrivals.append((giver, len(received), place(region, targets[at])))
            received.append(numel(region))
    return part


def exchange(comm: Comm, part: Part, xs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """This rank's targets. They may share memory with messages, or with `xs`."""
    sends, receives = pieces_to(part, xs, comm.rank), room_for(comm, part, dtype)
    if sends or receives:
        comm.exchange(sends, nonempty(receives))
    return made(comm, part, own_pieces(part, xs, comm.rank), receives, dtype)


def own_pieces(part: Part, xs: Sequence[Tensor], rank: int) -> list[Tensor]:
    """What a rank gives to itself."""
    return [place.of_whole(xs[source]) for source, place in part.sends.get(rank, [])]


def pieces_to(part: Part, xs: Sequence[Tensor], rank: int) -> dict[int, Tensor]:
    """The message to each other rank that gets something."""
    sends = {
        peer: torch.cat([place.of_whole(xs[source]).reshape(-1) for source, place in pieces])
        for peer, pieces in part.sends.items()
        if peer != rank
    }
    return nonempty(sends)


def room_for(comm: Comm, part: Part, dtype: torch.dtype) -> dict[int, Tensor]:
    """For the message of each other rank that gives something."""
    return {
        peer: torch.empty(sum(sizes), dtype=dtype, device=comm.device)
        for peer, sizes in part.receives.items()
        if peer != comm.rank
    }


def made(
    comm: Comm, part: Part, kept: Sequence[Tensor], messages: Mapping[int, Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """This rank's targets, of its own pieces and those that arrived."""
    arrived: dict[int, Sequence[Tensor]] = {comm.rank: kept}
    for peer, message in messages.items():
        arrived[peer] = torch.split_with_sizes(message, part.receives[peer])
    return [_made(comm, part.op, target, arrived, dtype) for target in part.targets]


def _numbers(owners: Iterable[tuple[int, Region]]) -> list[int]:
    """Each entry's number among those of its own rank."""
    count: dict[int, int] = {}
    numbers = []
    for rank, _ in owners:
        numbers.append(count.get(rank, 0))
        count[rank] = numbers[-1] + 1
    return numbers


def nonempty(messages: dict[int, Tensor]) -> dict[int, Tensor]:
    return {peer: message for peer, message in messages.items() if message.numel()}


def _made(
    comm: Comm, op: str, target: Target, arrived: Mapping[int, Sequence[Tensor]], dtype: torch.dtype
) -> Tensor:
    pieces = [(place, arrived[giver][number]) for giver, number, place in target.arrivals]
    if len(pieces) == 1 and pieces[0][0].is_all:
        return pieces[0][1].reshape(target.shape)
    out = torch.zeros(target.shape, dtype=dtype, device=comm.device)
    windows = [place.in_whole(out) for place, _ in pieces]
    for there in windows if op != "sum" else []:
        there.fill_(_neutral(op, dtype))
    for there, (_, value) in zip(windows, pieces, strict=True):
        _combine(there, value.reshape(there.shape), op)
    return out


def _neutral(op: str, dtype: torch.dtype) -> float | bool | int:
    if dtype == torch.bool:
        return op in ("min", "all")
    if op in ("max", "min") and not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return limits.min if op == "max" else limits.max
    return NEUTRAL[op]


def _combine(there: Tensor, value: Tensor, op: str) -> None:
    if op == "sum":
        there.add_(value)
    elif op in ("max", "any"):
        there.copy_(torch.maximum(there, value))
    else:
        there.copy_(torch.minimum(there, value))
