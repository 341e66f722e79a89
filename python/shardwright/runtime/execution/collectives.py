"""Collectives on tensors: factors, uneven pieces, and every way to combine.

Padding happens here only. All functions give a new tensor and leave their arguments as they are. With `later`
that tensor may still be on its way: they put there what ends that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..communication.comm import Comm, Ranks
from ..programs.cuts import Cut, padded, physical
from ..programs.regions import Factors, flat, shape_of
from . import rows

# What has more elements is sent as it lies: copying it together would cost more than a message.
TOGETHER = 1 << 16

Later = list[Callable[[], object]] | None


def all_reduce(comm: Comm, x: Tensor, ranks: Ranks, op: str) -> Tensor:
    return all_reduce_together(comm, [x], ranks, op)[0]


def all_reduce_together(
    comm: Comm, xs: Sequence[Tensor], ranks: Ranks, op: str, later: Later = None
) -> list[Tensor]:
    """Small ones of one dtype are one message, and no message waits for another."""
    ys = [_own_reducible(x, op) for x in xs]
    if len(ranks) > 1:
        op = {"any": "max", "all": "min"}.get(op, op)
        sent = [(parts, _joined(parts)) for parts in _messages(ys)]
        works = [comm.all_reduce(message, ranks, op) for _, message in sent]

        def end() -> None:
            for (parts, message), work in zip(sent, works, strict=True):
                work.wait()
                if len(parts) > 1:
                    for part, reduced in zip(parts, message.split([p.numel() for p in parts]), strict=True):
                        part.copy_(reduced.view(part.shape))

        _ended(end, later, as_it_arrives=all(y.dtype == x.dtype for x, y in zip(xs, ys, strict=True)))
    return [y if y.dtype == x.dtype else y.to(x.dtype) for x, y in zip(xs, ys, strict=True)]


def _messages(ys: list[Tensor]) -> list[list[Tensor]]:
    if len(ys) == 1:
        return [ys] if ys[0].numel() else []
    messages = [[y] for y in ys if y.numel() > TOGETHER]
    for dtype in dict.fromkeys(y.dtype for y in ys):
        messages.append([y for y in ys if y.dtype == dtype and 0 < y.numel() <= TOGETHER])
    return [parts for parts in messages if parts]


def _ended(end: Callable[[], object], later: Later, *, as_it_arrives: bool) -> None:
    """At once, unless that may be later and nothing is made of what arrives."""
    if later is None or not as_it_arrives:
        end()
    else:
        later.append(end)


def _own_reducible(x: Tensor, op: str) -> Tensor:
    """In memory that is written over."""
    y = _reducible(x, op)
    return y.clone(memory_format=torch.contiguous_format) if y.data_ptr() == x.data_ptr() else y.contiguous()


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([part.view(-1) for part in parts])


def all_gather(
    comm: Comm,
    x: Tensor,
    ranks: Ranks,
    dim: int,
    sizes: Sequence[int] | None,
    factors: Factors | None,
) -> Tensor:
    cut = Cut.from_sizes(x.shape, dim, sizes or _even_pieces(x.shape, dim, len(ranks), factors), factors)
    if len(ranks) == 1:
        return x.reshape(shape_of(cut.factors))
    piece = padded(x, max(map(cut.numel, range(len(ranks)))))
    rows = x.new_empty(len(ranks), piece.numel())
    if piece.numel():
        comm.all_gather(rows, piece, ranks).wait()
    if cut.joins_flat:
        return rows.view(shape_of(cut.factors))
    return cut.join([row[: cut.numel(index)] for index, row in enumerate(rows)])


def reduce_scatter(
    comm: Comm,
    x: Tensor,
    ranks: Ranks,
    dim: int,
    sizes: Sequence[int] | None,
    factors: Factors | None,
    later: Later = None,
) -> Tensor:
    place, dtype = ranks.index(comm.rank), x.dtype
    cut = Cut.from_sizes(x.shape, dim, sizes or _even_cut(x, dim, len(ranks), factors), factors)
    shape = shape_of(cut.piece(place))
    if len(ranks) == 1:
        return x.reshape(shape)
    x = _reducible(x, "sum")
    width = max(map(cut.numel, range(len(ranks))))
    if cut.joins_flat:
        rows = x.contiguous().view(len(ranks), width)
    else:
        rows = torch.stack([padded(piece, width) for piece in cut.split(x)])
    out = x.new_empty(width)
    if width:
        work = comm.reduce_scatter(out, rows, ranks)
        _ended(work.wait, later, as_it_arrives=out.dtype == dtype)
    return out[: cut.numel(place)].view(shape).to(dtype)


def all_to_all(
    comm: Comm,
    x: Tensor,
    ranks: Ranks,
    send: tuple[int, Sequence[int] | None, Factors | None],
    receive: tuple[int, Sequence[int] | None, Factors | None],
) -> Tensor:
    """`send` and `receive` are each a dim, sizes and factors."""
    place, count = ranks.index(comm.rank), len(ranks)
    cut = Cut.from_sizes(x.shape, send[0], send[1] or _even_cut(x, send[0], count, send[2]), send[2])
    piece = shape_of(cut.piece(place))
    sizes = receive[1] or _even_pieces(piece, receive[0], count, receive[2])
    join = Cut.from_sizes(piece, receive[0], sizes, receive[2])
    if x.is_sparse:
        return rows.all_to_all(comm, x, ranks, cut, join)
    pieces = cut.split(x)
    received = [x.new_empty(join.numel(index)) for index in range(count)]
    if count == 1:
        received = pieces
    else:
        comm.all_to_all(received, pieces, ranks)
    return join.join(received)


def _even_pieces(piece: Sequence[int], dim: int, count: int, factors: Factors | None) -> list[int]:
    """Sizes, given the shape of a piece, or the factors of the whole."""
    size = piece[dim] if factors is None else flat(factors)[dim] // count
    return [size] * count


def _even_cut(x: Tensor, dim: int, count: int, factors: Factors | None) -> list[int]:
    size = x.shape[dim] if factors is None else flat(factors)[dim]
    return [size // count] * count


def _reducible(x: Tensor, op: str) -> Tensor:
    """Logical values travel as bytes; no backend adds 16-bit integers."""
    x = physical(x)
    if op in ("any", "all"):
        return (x != 0).to(torch.uint8)
    if x.dtype == torch.bool:
        return x.to(torch.int32) if op == "sum" else x.to(torch.uint8)
    return x.to(torch.int32) if x.dtype == torch.int16 else x
