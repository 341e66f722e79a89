"""What messages take, by pattern, size of the group, and bytes; all groups of a size communicate at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..runtime.communication.comm import Comm, Ranks
from ..runtime.execution import collectives
from .clock import seconds

# Bytes, divisible by eight ranks.
SIZES = (256, 8 << 10, 128 << 10, 1 << 20, 8 << 20)
# A loop of products that takes about as long as a large message.
PRODUCT = 512

Points = list[tuple[float, float]]


def groups_of(world: int) -> dict[int, list[Ranks]]:
    """By size: neighbours in a row, as many groups as there are."""
    sizes = [size for size in range(2, world + 1) if world % size == 0]
    return {size: [tuple(range(at, at + size)) for at in range(0, world, size)] for size in sizes}


def measured(comm: Comm) -> dict[tuple[str, int], Points]:
    found: dict[tuple[str, int], Points] = {}
    for size, groups in groups_of(comm.world).items():
        ranks = next(group for group in groups if comm.rank in group)
        for name, make in PATTERNS.items():
            found[name, size] = [(nbytes, seconds(comm, make(comm, ranks, nbytes))) for nbytes in SIZES]
        if size == 2:
            found["message", 2] = [
                (nbytes, seconds(comm, _there_and_back(comm, ranks, nbytes)) / 2) for nbytes in SIZES
            ]
    return found


def _all_reduce(comm: Comm, ranks: Ranks, nbytes: int) -> Callable[[], object]:
    """As programs do it: what is given stays as it is."""
    x = _room(comm, nbytes)
    return lambda: collectives.all_reduce(comm, x, ranks, "sum")


def _all_gather(comm: Comm, ranks: Ranks, nbytes: int) -> Callable[[], object]:
    x = _room(comm, nbytes // len(ranks))
    return lambda: comm.all_gather(x.new_empty(len(ranks), len(x)), x, ranks).wait()


def _reduce_scatter(comm: Comm, ranks: Ranks, nbytes: int) -> Callable[[], object]:
    rows = _room(comm, nbytes).view(len(ranks), -1)
    return lambda: comm.reduce_scatter(rows.new_empty(rows.shape[1]), rows, ranks).wait()


def _all_to_all(comm: Comm, ranks: Ranks, nbytes: int) -> Callable[[], object]:
    pieces = list(_room(comm, nbytes).view(len(ranks), -1))
    return lambda: comm.all_to_all([torch.empty_like(x) for x in pieces], pieces, ranks)


PATTERNS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


def _there_and_back(comm: Comm, ranks: Ranks, nbytes: int) -> Callable[[], object]:
    x, (first, second) = _room(comm, nbytes), ranks
    count = iter(range(1 << 30))

    def work() -> None:
        number = next(count)
        if comm.rank == first:
            comm.send(x, second, 0, number).wait()
            comm.receive(x, second, 0, number).wait()
        else:
            comm.receive(x, first, 0, number).wait()
            comm.send(x, first, 0, number).wait()

    return work


def hidden(comm: Comm) -> float:
    """What of a message that goes on while a device computes does not hold it up."""
    ranks, x = tuple(range(comm.world)), _room(comm, SIZES[-1])
    size = PRODUCT if comm.device.type == "cpu" else 8 * PRODUCT
    a, b = (torch.randn(size, size, device=comm.device) for _ in range(2))
    message = seconds(comm, lambda: comm.all_reduce(x, ranks, "sum").wait())
    product = seconds(comm, lambda: torch.mm(a, b))
    often = max(1, round(message / product))

    def compute() -> None:
        for _ in range(often):
            torch.mm(a, b)

    def both() -> None:
        work = comm.all_reduce(x, ranks, "sum")
        compute()
        work.wait()

    alone, together = seconds(comm, compute), seconds(comm, both)
    return min(1.0, max(0.0, (message + alone - together) / min(message, alone)))


def _room(comm: Comm, nbytes: int) -> Tensor:
    return torch.zeros(nbytes // 4, device=comm.device)


def agreed(comm: Comm, values: Sequence[float]) -> list[float]:
    """What all ranks have measured, on the mean."""
    return [total / comm.world / 1e12 for total in comm.tally([int(value * 1e12) for value in values])]
