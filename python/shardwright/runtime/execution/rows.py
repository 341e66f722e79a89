"""The all-to-all of rows for experts, of which each rank has another number: first how many, then their
places and the rows themselves.

Rows are a sparse tensor: what is cut and joined are the places, of experts and of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...library import counts
from ..communication.comm import Comm, Ranks
from ..programs.cuts import Cut
from ..rows import Known, packed

# Of experts and of tokens; the dim behind them is that of a row.
PLACES = 2
# On the way back of rows, how many go and come.
known = Known()


def bytes_of(x: Tensor) -> int:
    return x._values().nbytes if x.is_sparse else x.nbytes


def all_to_all(comm: Comm, x: Tensor, ranks: Ranks, cut: Cut, join: Cut) -> Tensor:
    """`cut` says where the tensor falls into pieces, `join` how those that arrive become one."""
    places, values = _coordinates(x._indices(), cut.factors), x._values()
    starts = torch.tensor(_starts(cut.sizes), device=x.device)
    piece = torch.bucketize(places[cut.at], starts[1:], right=True)
    order = piece.argsort(stable=True)
    piece = piece.index_select(0, order)
    places = [place.index_select(0, order) for place in places]
    places[cut.at] = places[cut.at] - starts[piece]
    sizes, taken = _sizes(comm, piece, ranks, known.get(x._indices()), _way(ranks, cut, join))
    numbers = [_numbers(place, cut.piece(at)) for at, place in enumerate(_split(places, sizes))]
    rows = values.index_select(0, order).split(sizes)
    width = values.shape[1:]
    come = _sent(comm, numbers, [places[0].new_empty(count) for count in taken], ranks)
    came = _sent(comm, rows, [values.new_empty(count, *width) for count in taken], ranks)
    arrived = _joined(come, came, join, width)
    # What comes back, and its gradient, goes where this came from.
    known[arrived._indices()] = _way(ranks, join, cut), (taken, sizes)
    return arrived


def _way(ranks: Ranks, cut: Cut, join: Cut) -> object:
    return tuple(ranks), *((one.factors[:PLACES], one.at, one.sizes) for one in (cut, join))


def _sizes(comm: Comm, piece: Tensor, ranks: Ranks, before: Any, way: object) -> tuple[list[int], list[int]]:
    """How many rows this rank has for each, and each has for this one. Where that is known nobody looks, but
    all send: they need not agree on what they know."""
    given = counts(piece, len(ranks))
    taken = _sent(comm, given.split(1), [torch.empty_like(given[:1]) for _ in ranks], ranks)
    if before is not None and before[0] == way:
        sizes: tuple[list[int], list[int]] = before[1]
        return sizes
    both: list[int] = torch.cat([given, *taken]).tolist()
    return both[: len(ranks)], both[len(ranks) :]


def _sent(comm: Comm, pieces: Sequence[Tensor], taken: list[Tensor], ranks: Ranks) -> list[Tensor]:
    if len(ranks) == 1:
        return list(pieces)
    comm.all_to_all([x.view(-1) for x in taken], [x.reshape(-1) for x in pieces], ranks)
    return taken


def _joined(numbers: list[Tensor], rows: list[Tensor], join: Cut, width: torch.Size) -> Tensor:
    pieces = [
        _placed(number, join, at, start)
        for at, (number, start) in enumerate(zip(numbers, _starts(join.sizes), strict=True))
    ]
    together = [torch.cat(along) for along in zip(*pieces, strict=True)]
    number, order = _numbers(together, join.factors).sort()
    places, sizes = _halved(number, join.factors)
    return packed(torch.cat(rows).index_select(0, order), places, (*sizes, *width))


def _placed(number: Tensor, join: Cut, at: int, start: int) -> list[Tensor]:
    """The coordinates in the whole of what came as one piece."""
    factors = join.piece(at)
    places = _coordinates(_halved(number, factors)[0], factors)
    places[join.at] = places[join.at] + start
    return places


def _halved(number: Tensor, factors: list[list[int]]) -> tuple[Tensor, tuple[int, int]]:
    """The expert and the token of each number, and how many of both there are."""
    experts, tokens = prod(factors[0]), prod(factors[1])
    return torch.stack([number // tokens, number % tokens]), (experts, tokens)


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *accumulate(sizes)][: len(sizes)]


def _split(places: list[Tensor], sizes: list[int]) -> list[list[Tensor]]:
    return [list(piece) for piece in zip(*(place.split(sizes) for place in places), strict=True)]


def _coordinates(places: Tensor, factors: list[list[int]]) -> list[Tensor]:
    """Along each factor of experts and of tokens."""
    coordinates: list[Tensor] = []
    for at, dim in zip(places, factors[:PLACES], strict=True):
        along: list[Tensor] = []
        for size in reversed(dim):
            along.insert(0, at % size)
            at = at // size
        coordinates += along
    return coordinates


def _numbers(places: list[Tensor], factors: list[list[int]]) -> Tensor:
    """One number for each place, in the order of experts and then tokens."""
    sizes = [size for dim in factors[:PLACES] for size in dim]
    number = torch.zeros_like(places[0])
    for size, along in zip(sizes, places, strict=True):
        number = number * size + along
    return number
