"""Exact transfers, region by region: one message for each pair of ranks, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..communication.comm import Comm
from ..programs.program import Exchange, TensorInfo
from ..programs.regions import Region, cut, extents, local_factors, numel, shape_of, window, within

# What leaves any other value as it is, for operations whose pieces may overlap.
NEUTRAL = {"max": -torch.inf, "min": torch.inf, "any": False, "all": True}


@dataclass(frozen=True)
class Piece:
    """A piece of the table, as one rank sees it: `source` and `target` count its own."""

    source: int
    target: int
    region: Region


@dataclass
class Part:
    """One rank's part in an exchange."""

    factors: list[list[int]]
    op: str
    sources: list[Region] = field(default_factory=list)
    targets: list[Region] = field(default_factory=list)
    sends: dict[int, list[Piece]] = field(default_factory=dict)
    receives: dict[int, list[Piece]] = field(default_factory=dict)
    # For each target: who gives a piece, and which of that rank's it is; in the table's order.
    arrivals: list[list[tuple[int, int]]] = field(default_factory=list)

    def bytes_sent(self, rank: int, element_size: int) -> int:
        pieces = [piece for peer, list_ in self.sends.items() if peer != rank for piece in list_]
        return element_size * sum(numel(piece.region) for piece in pieces)


def part_of(table: Exchange, tensor: TensorInfo, rank: int) -> Part:
    """Reads one rank's part out of the table."""
    part = Part(tensor.factors, table.op)
    source_at, target_at = _numbers(table.sources), _numbers(table.targets)
    part.sources = [region for owner, region in table.sources if owner == rank]
    part.targets = [region for owner, region in table.targets if owner == rank]
    part.arrivals = [[] for _ in part.targets]
    for source, target, region in table.pieces:
        giver, taker = table.sources[source][0], table.targets[target][0]
        piece = Piece(source_at[source], target_at[target], region)
        if giver == rank:
            part.sends.setdefault(taker, []).append(piece)
        if taker == rank:
            received = part.receives.setdefault(giver, [])
            part.arrivals[piece.target].append((giver, len(received)))
            received.append(piece)
    return part


def exchange(comm: Comm, part: Part, xs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """This rank's targets. They may share memory with messages, or with `xs`."""
    own = [_taken(part, xs, piece) for piece in part.sends.get(comm.rank, [])]
    sends = {
        peer: torch.cat([_taken(part, xs, piece).reshape(-1) for piece in pieces])
        for peer, pieces in part.sends.items()
        if peer != comm.rank
    }
    receives = {
        peer: torch.empty(sum(numel(p.region) for p in pieces), dtype=dtype, device=comm.device)
        for peer, pieces in part.receives.items()
        if peer != comm.rank
    }
    if sends or receives:
        comm.exchange(_nonempty(sends), _nonempty(receives))
    found = {
        peer: list(torch.split(message, [numel(piece.region) for piece in part.receives[peer]]))
        for peer, message in receives.items()
    }
    found[comm.rank] = own
    return [_target(comm, part, at, found, dtype) for at in range(len(part.targets))]


def _numbers(owners: Iterable[tuple[int, Region]]) -> list[int]:
    """Each entry's number among those of its own rank."""
    count: dict[int, int] = {}
    numbers = []
    for rank, _ in owners:
        numbers.append(count.get(rank, 0))
        count[rank] = numbers[-1] + 1
    return numbers


def _taken(part: Part, xs: Sequence[Tensor], piece: Piece) -> Tensor:
    frame = part.sources[piece.source]
    return cut(xs[piece.source], local_factors(frame, part.factors), within(piece.region, frame))


def _nonempty(messages: dict[int, Tensor]) -> dict[int, Tensor]:
    return {peer: message for peer, message in messages.items() if message.numel()}


def _target(comm: Comm, part: Part, at: int, found: dict[int, list[Tensor]], dtype: torch.dtype) -> Tensor:
    frame = part.targets[at]
    factors = local_factors(frame, part.factors)
    pieces = [(part.receives[giver][n].region, found[giver][n]) for giver, n in part.arrivals[at]]
    if len(pieces) == 1 and pieces[0][0] == frame:
        return pieces[0][1].reshape(shape_of(factors))
    out = torch.zeros(shape_of(factors), dtype=dtype, device=comm.device)
    for region, _ in pieces if part.op != "sum" else []:
        window(out, factors, within(region, frame)).fill_(_neutral(part.op, dtype))
    for region, value in pieces:
        there = window(out, factors, within(region, frame))
        _combine(there, value.reshape(extents(region)), part.op)
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
