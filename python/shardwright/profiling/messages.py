"""What messages take, by pattern, size of the group, and bytes; all groups of a size communicate at once."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..runtime.communication.comm import Comm, Ranks
from ..runtime.communication.works import Work as Waits
from ..runtime.execution import collectives
from .clock import Work, often, seconds, stretch

# Bytes, divisible by eight ranks.
SIZES = (256, 8 << 10, 128 << 10, 1 << 20, 8 << 20)
# Between GPUs besides, where the others are mostly their beginning.
LARGER = (64 << 20, 256 << 20)
# A product between messages is of so many rows and columns.
PRODUCT = 384
# Messages of so many buffers take turns, which caches do not hold.
ROOMS = 4
# Messages with and without products take so many turns, each for so many seconds.
TURNS, LASTS = 7, 0.025
# Seconds that any message takes.
SHORTEST = 1e-6

Points = list[tuple[float, float]]
# What sends a message of so many bytes, and goes on meanwhile.
Begin = Callable[[Comm, Ranks, int], Callable[[], Waits]]


def sizes_on(comm: Comm) -> tuple[int, ...]:
    return (*SIZES, *(LARGER if comm.device.type == "cuda" else ()))


def groups_of(world: int) -> dict[int, list[Ranks]]:
    """By size: neighbours in a row, as many groups as there are."""
    sizes = [size for size in range(2, world + 1) if world % size == 0]
    return {size: [tuple(range(at, at + size)) for at in range(0, world, size)] for size in sizes}


def measured(comm: Comm) -> dict[tuple[str, int], Points]:
    points: dict[tuple[str, int], Points] = {}
    for size, groups in groups_of(comm.world).items():
        ranks = next(group for group in groups if comm.rank in group)
        for name, make in PATTERNS.items():
            rooms = {nbytes: [make(comm, ranks, nbytes) for _ in range(ROOMS)] for nbytes in sizes_on(comm)}
            points[name, size] = rising([(nbytes, between(comm, works)) for nbytes, works in rooms.items()])
        if size == 2:
            points["message", 2] = [
                (nbytes, seconds(comm, _there_and_back(comm, ranks, nbytes)) / 2) for nbytes in sizes_on(comm)
            ]
    return points


def between(comm: Comm, messages: Sequence[Work]) -> float:
    """Seconds that messages add to products between which they are sent, one after the other: ranks come to
    them at moments of their own and have slept meanwhile, as in a step. Right behind each other they would be
    up to five times as quick."""
    compute, each = _products(comm), itertools.cycle(messages)

    def both() -> None:
        compute()
        next(each)()

    return _more(comm, both, compute)


def _more(comm: Comm, both: Work, alone: Work) -> float:
    """What the first takes more; they take turns."""
    count = often(comm, both, lasts=LASTS)
    pairs = [(stretch(comm, both, count=count), stretch(comm, alone, count=count)) for _ in range(TURNS)]
    together, by_itself = (statistics.median(times) for times in zip(*pairs, strict=True))
    return max(SHORTEST, together - by_itself)


def rising(points: Points) -> Points:
    """A smaller message takes no longer than a larger one, whatever came between."""
    shortest = itertools.accumulate((time for _, time in reversed(points)), min)
    return [(nbytes, time) for (nbytes, _), time in zip(points, reversed(list(shortest)), strict=True)]


def _products(comm: Comm) -> Work:
    size = PRODUCT if comm.device.type == "cpu" else 8 * PRODUCT
    a, b = (torch.randn(size, size, device=comm.device) for _ in range(2))
    return lambda: torch.mm(a, b)


def _all_reduce(comm: Comm, ranks: Ranks, nbytes: int) -> Work:
    """As programs do it: what is given stays as it is."""
    x = _room(comm, nbytes)
    return lambda: collectives.all_reduce(comm, x, ranks, "sum")


def _all_to_all(comm: Comm, ranks: Ranks, nbytes: int) -> Work:
    pieces = list(_room(comm, nbytes).view(len(ranks), -1))
    return lambda: comm.all_to_all([torch.empty_like(x) for x in pieces], pieces, ranks)


def _there_and_back(comm: Comm, ranks: Ranks, nbytes: int) -> Work:
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


def _summing(comm: Comm, ranks: Ranks, nbytes: int) -> Callable[[], Waits]:
    x = _room(comm, nbytes)
    return lambda: comm.all_reduce(x, ranks, "sum")


def _gathering(comm: Comm, ranks: Ranks, nbytes: int) -> Callable[[], Waits]:
    x = _room(comm, nbytes // len(ranks))
    return lambda: comm.all_gather(x.new_empty(len(ranks), len(x)), x, ranks)


def _scattering(comm: Comm, ranks: Ranks, nbytes: int) -> Callable[[], Waits]:
    rows = _room(comm, nbytes).view(len(ranks), -1)
    return lambda: comm.reduce_scatter(rows.new_empty(rows.shape[1]), rows, ranks)


def _waited(begin: Begin) -> Callable[[Comm, Ranks, int], Work]:
    def make(comm: Comm, ranks: Ranks, nbytes: int) -> Work:
        start = begin(comm, ranks, nbytes)
        return lambda: start().wait()

    return make


PATTERNS = {
    "all_reduce": _all_reduce,
    "all_gather": _waited(_gathering),
    "reduce_scatter": _waited(_scattering),
    "all_to_all": _all_to_all,
}


def hidden(comm: Comm) -> float:
    """What of messages that go on while a device computes does not hold it up."""
    compute = _products(comm)
    product = seconds(comm, compute)
    each = [_hidden(comm, begin, (compute, product)) for begin in (_summing, _gathering, _scattering)]
    saved, most = (sum(of_each) for of_each in zip(*each, strict=True))
    return min(1.0, max(0.0, saved / most))


def _hidden(comm: Comm, begin: Begin, products: tuple[Work, float]) -> tuple[float, float]:
    """Seconds of a message that are hidden behind products which take about as long, and that could be."""
    (compute, product), ranks = products, tuple(range(comm.world))
    largest = sizes_on(comm)[-1]
    start = begin(comm, ranks, largest)
    message = between(comm, [_waited(begin)(comm, ranks, largest)])
    count = max(1, round(message / product))

    def both() -> None:
        work = start()
        for _ in range(count):
            compute()
        work.wait()

    times = often(comm, both, lasts=LASTS)
    together = statistics.median(stretch(comm, both, count=times) for _ in range(TURNS))
    return message + count * product - together, min(message, count * product)


def _room(comm: Comm, nbytes: int) -> Tensor:
    return torch.zeros(nbytes // 4, device=comm.device)
