"""Each collective, on threads and on Gloo, even and uneven, with and without factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shardwright.runtime import Comm, TorchComm, launch, run_local
from shardwright.runtime.execution.collectives import (
    TOGETHER,
    all_gather,
    all_reduce,
    all_reduce_together,
    all_to_all,
    reduce_scatter,
)
from shardwright.runtime.execution.exchange import exchange, part_of
from shardwright.runtime.programs.program import Exchange, TensorInfo
from shardwright.runtime.programs.regions import Region, cut, shape_of

WORLD = 3
EVERYONE = (0, 1, 2)
MIXED = (2, 0, 1)

# The whole tensor is (2 3 4) x 5: its factor 1 is strided in the first dim.
FACTORS = [[2, 3, 4], [5]]
SHAPE = (24, 5)


def tensor(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-50, 50, shape, generator=generator).to(dtype)


def pieces(whole: Tensor, factors: list[list[int]], at: int, sizes: list[int]) -> list[Tensor]:
    extents = [size for dim in factors for size in dim]
    parts = whole.reshape(extents).split(sizes, at)
    shapes = [[list(dim) for dim in factors] for _ in sizes]
    for shape, size in zip(shapes, sizes, strict=True):
        where = [(d, i) for d, dim in enumerate(factors) for i in range(len(dim))][at]
        shape[where[0]][where[1]] = size
    return [part.reshape(shape_of(shape)) for part, shape in zip(parts, shapes, strict=True)]


CUTS: dict[str, tuple[int, list[int], Any]] = {
    "dim 0": (0, [8, 8, 8], None),
    "dim 1, uneven": (1, [2, 2, 1], None),
    "dim 0, one empty": (0, [20, 4, 0], None),
    "strided factor": (1, [1, 1, 1], FACTORS),
    "inner factor, uneven": (2, [2, 1, 1], FACTORS),
    "last factor, uneven": (3, [2, 2, 1], FACTORS),
}


def check_gather(comm: Comm) -> None:
    for at, sizes, factors in CUTS.values():
        for ranks in (EVERYONE, MIXED):
            whole = tensor(0, *SHAPE)
            piece = pieces(whole, factors or [[24], [5]], at, sizes)[ranks.index(comm.rank)]
            even = None if len(set(sizes)) == 1 else sizes
            assert torch.equal(all_gather(comm, piece, ranks, at, even, factors), whole)


def check_scatter(comm: Comm) -> None:
    for at, sizes, factors in CUTS.values():
        for ranks in (EVERYONE, MIXED):
            total = sum((tensor(rank, *SHAPE) for rank in ranks), torch.zeros(SHAPE, dtype=torch.float64))
            expected = pieces(total, factors or [[24], [5]], at, sizes)[ranks.index(comm.rank)]
            even = None if len(set(sizes)) == 1 else sizes
            ours = reduce_scatter(comm, tensor(comm.rank, *SHAPE), ranks, at, even, factors)
            assert torch.equal(ours, expected)


def check_all_to_all(comm: Comm) -> None:
    for send, receive in (("dim 0", "dim 1, uneven"), ("strided factor", "last factor, uneven")):
        for ranks in (EVERYONE, MIXED):
            whole, place = tensor(0, *SHAPE), ranks.index(comm.rank)
            (at, sizes, factors), (to, counts, others) = CUTS[send], CUTS[receive]
            given = pieces(whole, others or [[24], [5]], to, counts)[place]
            expected = pieces(whole, factors or [[24], [5]], at, sizes)[place]
            send_factors = factors and [[2, 3, 4], [counts[place]]]
            receive_factors = others and [[2, sizes[place], 4], [5]]
            ours = all_to_all(comm, given, ranks, (at, None, send_factors), (to, counts, receive_factors))
            assert torch.equal(ours, expected)


def check_reduce(comm: Comm) -> None:
    for op, combine in (("sum", torch.sum), ("max", torch.amax), ("min", torch.amin)):
        for dtype in (torch.float64, torch.int64, torch.int16, torch.bfloat16):
            parts = torch.stack([tensor(rank, 4, 3, dtype=dtype) for rank in EVERYONE])
            ours = all_reduce(comm, parts[comm.rank].t(), EVERYONE, op)
            assert torch.equal(ours, combine(parts, 0).to(dtype).t())
    together = [tensor(rank, 4, 3).t() for rank in EVERYONE], [tensor(rank, 5).int() for rank in EVERYONE]
    large = [tensor(rank, TOGETHER + 1) for rank in EVERYONE]
    everything = [*together, large, together[0]]
    ours = all_reduce_together(comm, [parts[comm.rank] for parts in everything], EVERYONE, "sum")
    for reduced, parts in zip(ours, everything, strict=True):
        assert torch.equal(reduced, torch.stack(parts).sum(0).to(reduced.dtype))
    assert all(torch.equal(parts[comm.rank], tensor(comm.rank, 4, 3).t()) for parts in together[:1])
    bools = torch.stack([tensor(rank, 9) > 10 for rank in EVERYONE])
    assert torch.equal(all_reduce(comm, bools[comm.rank], EVERYONE, "any"), bools.any(0))
    assert torch.equal(all_reduce(comm, bools[comm.rank], MIXED, "all"), bools.all(0))


def check_exchange(comm: Comm) -> None:
    """Overlap, a strided factor, a target not filled wholly, and one rank's own piece."""
    whole: Region = ((0, 2), (0, 3), (0, 4), (0, 5))
    left: Region = ((0, 2), (0, 2), (0, 4), (0, 5))
    right: Region = ((0, 2), (1, 3), (0, 4), (2, 5))
    overlap: Region = ((0, 2), (1, 2), (0, 4), (2, 5))
    info = TensorInfo(0, "value", ["v"], torch.float64, FACTORS)
    full = tensor(0, *SHAPE) - 100
    given = {0: cut(full, FACTORS, left), 1: cut(full, FACTORS, right)}
    for op in ("sum", "max", "min"):
        table = Exchange(
            0, op, [(0, left), (1, right)], [(1, whole), (0, overlap), (2, right)],
            [(0, 0, left), (1, 0, right), (0, 1, overlap), (1, 2, right)], True,
        )  # fmt: skip
        targets = exchange(
            comm,
            part_of(table, info, comm.rank),
            [given[r] for r in given if r == comm.rank],
            full.dtype,
        )
        expected = torch.zeros(2, 3, 4, 5, dtype=full.dtype)
        expected[:, :2] = full.view(2, 3, 4, 5)[:, :2]
        expected[:, 1:, :, 2:] = full.view(2, 3, 4, 5)[:, 1:, :, 2:]
        if op == "sum":
            expected[:, 1:2, :, 2:] *= 2
        wanted = [cut(full, FACTORS, overlap), expected.view(SHAPE), cut(full, FACTORS, right)][comm.rank]
        assert len(targets) == 1
        assert torch.equal(targets[0], wanted)


CHECKS: list[Callable[[Comm], None]] = [
    check_gather,
    check_scatter,
    check_all_to_all,
    check_reduce,
    check_exchange,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_threads(check: Callable[[Comm], None]) -> None:
    run_local(WORLD, lambda rank, comm: check(comm))


def _on_gloo(rank: int) -> None:
    comm = TorchComm()
    comm.prepare([[list(EVERYONE)]])
    for check in CHECKS:
        check(comm)


@pytest.mark.processes
def test_on_processes() -> None:
    launch(_on_gloo, WORLD, timeout=120)
