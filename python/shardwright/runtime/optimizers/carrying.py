"""What goes between those who hold parts of a parameter and the one that has it whole for a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..communication.comm import Comm
from ..programs.boxes import disjoint
from ..programs.program import Program, TensorInfo
from ..programs.regions import Region, cut, numel, window, within
from ..shards.shards import Shards


@dataclass(frozen=True)
class Piece:
    """A region that lies in a shard, by its number on the rank that holds it, and in the whole parameter."""

    tensor: TensorInfo
    region: Region
    holder: int
    shard: int
    # The rank that has the whole.
    owner: int
    # Else to the shard.
    to_whole: bool

    @property
    def giver(self) -> int:
        return self.holder if self.to_whole else self.owner

    @property
    def taker(self) -> int:
        return self.owner if self.to_whole else self.holder


def to_make_whole(program: Program, number: int) -> list[Piece]:
    """Every element once: from the owner itself, if it has it, else from the first that does."""
    owner = program.updates[number]
    held = _held(program, number)
    regions = list(dict.fromkeys(region for _, _, region in held))
    pieces = []
    for at, piece in disjoint(regions):
        of_it = [(holder, shard) for holder, shard, region in held if region == regions[at]]
        holder, shard = next((it for it in of_it if it[0] == owner), of_it[0])
        pieces.append(Piece(program.tensors[number], piece, holder, shard, owner, to_whole=True))
    return pieces


def to_hand_out(program: Program, number: int) -> list[Piece]:
    """To every shard all of it."""
    owner, tensor = program.updates[number], program.tensors[number]
    return [
        Piece(tensor, region, holder, shard, owner, to_whole=False)
        for holder, shard, region in _held(program, number)
    ]


def _held(program: Program, number: int) -> list[tuple[int, int, Region]]:
    return [
        (rank, at, region)
        for rank, table in enumerate(program.ranks)
        for at, (tensor, region) in enumerate(table.shards)
        if tensor == number and numel(region)
    ]


@torch.no_grad()
def carry(
    comm: Comm,
    shards: Shards,
    pieces: Sequence[Piece],
    parts: Sequence[Tensor],
    wholes: Mapping[int, Tensor],
) -> None:
    """Between `parts`, in the order of this rank's shards, and the whole tensors that this rank has.

    One message for each pair of ranks, and each type.
    """
    for dtype in sorted({piece.tensor.dtype for piece in pieces}, key=str):
        alike = [piece for piece in pieces if piece.tensor.dtype == dtype]
        sends: dict[int, list[Tensor]] = {}
        arrivals: dict[int, list[Piece]] = {}
        for piece in alike:
            if comm.rank == piece.giver:
                sends.setdefault(piece.taker, []).append(_read(piece, shards, parts, wholes).reshape(-1))
            if comm.rank == piece.taker:
                arrivals.setdefault(piece.giver, []).append(piece)
        messages = {peer: torch.cat(given).to(comm.device) for peer, given in sends.items()}
        kept = messages.pop(comm.rank, None)
        received = {
            peer: torch.empty(sum(numel(it.region) for it in given), dtype=dtype, device=comm.device)
            for peer, given in arrivals.items()
            if peer != comm.rank
        }
        comm.exchange(messages, received)
        if kept is not None:
            received[comm.rank] = kept
        for peer, message in received.items():
            sizes = [numel(piece.region) for piece in arrivals[peer]]
            for piece, values in zip(arrivals[peer], message.split(sizes), strict=True):
                target = _written(piece, shards, parts, wholes)
                target.copy_(values.view(target.shape))


def _read(piece: Piece, shards: Shards, parts: Sequence[Tensor], wholes: Mapping[int, Tensor]) -> Tensor:
    if not piece.to_whole:
        return cut(wholes[piece.tensor.id], piece.tensor.factors, piece.region)
    shard = shards.held[piece.shard]
    return cut(parts[piece.shard], shard.factors, within(piece.region, shard.region))


def _written(piece: Piece, shards: Shards, parts: Sequence[Tensor], wholes: Mapping[int, Tensor]) -> Tensor:
    if piece.to_whole:
        return window(wholes[piece.tensor.id], piece.tensor.factors, piece.region)
    shard = shards.held[piece.shard]
    return window(parts[piece.shard], shard.factors, within(piece.region, shard.region))
