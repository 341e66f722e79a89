"""What is gathered of a unit, and its gradients, where all of it is one message: kernels and values."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.runtime import Alone, LocalComm, run_local
from shardwright.runtime.communication.comm import JOINED, NO_LIMIT
from shardwright.runtime.communication.works import Done
from shardwright.runtime.execution.gathers import Gathering, Scattering
from shardwright.runtime.execution.offload import Host
from shardwright.runtime.programs.cuts import balanced
from shardwright.runtime.programs.program import Gathered, TensorInfo
from shardwright.runtime.programs.regions import cut, numel, shape_of, whole
from shardwright.runtime.shards.copies import Copy
from shardwright.runtime.shards.shards import Shard

torch.set_num_threads(1)

CPU = torch.device("cpu")
# Of a layer of Llama: the factors of each parameter, and which of them is divided.
LAYER = [
    ([[8, 2, 64], [512]], 3),
    ([[8, 2, 64], [512]], 3),
    ([[8, 64], [512]], 2),
    ([[512], [8, 64]], 0),
    ([[1024], [512]], 0),
    ([[1024], [512]], 0),
    ([[512], [1024]], 0),
    ([[512]], 0),
    ([[512]], 0),
]
ALL_FLAT = [(factors, 0) for factors in ([[512], [512]], [[1024], [512]], [[512]])] * 3
# Parts of several sizes, blocks apart from each other, more ranks than parts.
UNEVEN = [([[7], [3]], 0), ([[5, 3], [2]], 1), ([[4], [2, 5]], 2), ([[2], [3]], 0), ([[6], [4]], 0)]


class Count(TorchDispatchMode):
    """What operators start: views and memory start nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.started: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and "empty" not in str(func):
            self.started[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Silent(Alone):
    """Messages themselves start nothing here."""

    joined = NO_LIMIT  # type: ignore[assignment]
    sent = 0

    def all_gather(self, rows: Tensor, x: Tensor, ranks: Any) -> Any:
        self.sent += 1
        return Done()

    def reduce_scatter(self, out: Tensor, rows: Tensor, ranks: Any) -> Any:
        self.sent += 1
        return Done()


def copies_of(
    unit: Sequence[Any], rank: int, ranks: int, values: Sequence[Tensor] | None = None, **kind: Any
) -> list[Copy]:
    return [
        copy_of(factors, at, rank, ranks, None if values is None else values[number], **kind)
        for number, (factors, at) in enumerate(unit)
    ]


def copy_of(
    factors: list[list[int]], at: int, rank: int, ranks: int, value: Tensor | None, **kind: Any
) -> Copy:
    tensor = TensorInfo(0, "param", ["w"], kind.pop("dtype", torch.float64), factors, **kind)
    region = list(whole(factors))
    sizes = balanced(region[at][1], ranks)
    start = sum(sizes[:rank])
    region[at] = (start, start + sizes[rank])
    if value is None:
        data = torch.empty(numel(tuple(region)), dtype=tensor.dtype)
    else:
        data = cut(value, factors, tuple(region)).to(tensor.dtype).clone()
    copy = Copy(Shard(tensor, tuple(region), data), CPU, Gathered(0, whole(factors), at, ranks))
    copy.leaf(whole(factors))
    return copy


def started(unit: Sequence[Any], ranks: int, comm: Silent | None = None) -> tuple[Counter[str], Counter[str]]:
    """By what a unit is gathered, and its gradients are sent."""
    comm = comm or Silent(1, ranks)
    copies, everyone = copies_of(unit, 1, ranks), tuple(range(ranks))
    leaves = [(copy, copy.leaves[0]) for copy in copies]
    with torch.no_grad(), Count() as gathers:
        Gathering(comm, copies, everyone, Host(CPU)).wait()
    for _, leaf in leaves:
        leaf.grad = torch.zeros(leaf.shape, dtype=leaf.dtype)
    with torch.no_grad(), Count() as scatters:
        Scattering(comm, leaves, everyone, torch.float64).wait()
    assert comm.sent == 2, "a unit is one message each way"
    return gathers.started, scatters.started


@pytest.mark.parametrize("unit", [LAYER, ALL_FLAT], ids=["llama", "flat"])
def test_kernels_do_not_depend_on_how_many_ranks_there_are(unit: Sequence[Any]) -> None:
    gathers, scatters = started(unit, 64)
    assert (gathers, scatters) == started(unit, 512)
    # Own parts into the message, and all out of it; gradients into the message.
    assert gathers.total() == 2, gathers
    assert scatters.total() == 1, scatters


def test_parts_that_join_are_taken_apart_at_once() -> None:
    gathers, _ = started(ALL_FLAT, 64)
    assert gathers["aten.split_with_sizes_copy.out"] == 1
    assert gathers["aten._foreach_copy_.default"] == 1


def test_kernels_of_parts_that_do_not_join_are_no_more_than_parameters() -> None:
    assert [len(copy.runs) for copy in copies_of(LAYER, 0, 64)] == [1] * len(LAYER)
    assert all(len(copy.runs) <= 2 for copy in copies_of(UNEVEN, 0, 4))


@pytest.mark.parametrize("joined", [0, JOINED, NO_LIMIT])
@pytest.mark.parametrize("kind", [{}, {"read_as": torch.float32}, {"on_host": True}], ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_what_is_gathered_is_the_whole_and_what_is_scattered_its_parts(
    ranks: int, kind: dict[str, Any], joined: int
) -> None:
    unit = [*UNEVEN, ([[2 * 3 * 4 * 7], [3]], 0)]
    generator = torch.Generator().manual_seed(0)
    values = [torch.randint(-99, 99, shape_of(factors), generator=generator).double() for factors, _ in unit]

    def rank(rank: int, comm: LocalComm) -> list[bool]:
        copies = copies_of(unit, rank, ranks, values, **kind)
        everyone = tuple(range(ranks))
        end: Any = Joining(comm, joined)
        with torch.no_grad():
            Gathering(end, copies, everyone, Host(CPU)).wait()
        same = [
            torch.equal(copy.leaves[0].double(), value) for copy, value in zip(copies, values, strict=True)
        ]
        for copy, value in zip(copies, values, strict=True):
            copy.leaves[0].grad = value * (rank + 1)
        with torch.no_grad():
            leaves = [(copy, copy.leaves[0]) for copy in copies]
            scattered = Scattering(end, leaves, everyone, torch.float64).wait()
        parts = {id(copy): gradient for copy, gradient in scattered}
        times = ranks * (ranks + 1) // 2
        return same + [
            torch.equal(parts[id(copy)], (copy.own_part(value) * times))
            for copy, value in zip(copies, values, strict=True)
        ]

    actual = run_local(ranks, rank)
    assert all(itertools.chain(*actual)), actual


class Joining:
    def __init__(self, comm: LocalComm, joined: int):
        self._comm, self.joined = comm, joined

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)
