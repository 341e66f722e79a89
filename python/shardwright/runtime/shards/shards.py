"""What a rank holds of parameters, buffers and constants, and how emitted code reads it.

A *shard* is held between steps; a rank never holds more of a tensor. A *copy* is more of it, gathered for a
while. A *leaf* is what the code reads: all or part of a shard, or a copy, detached, with its own gradient.
Leaves share the shard's memory wherever the part is a view; other leaves are copied afresh for each
forward. Where the code reads another dtype than is kept, a leaf is a cast, and its gradient has the
dtype that is kept. A shard that lives on the host is read through copies only, and has its gradient there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ...errors import RuntimeFault
from ..guards.part_gradients import plain, writable
from ..programs.program import Program, TensorInfo
from ..programs.regions import Region, cut, local_factors, meet, numel, whole, window, within
from .copies import Copy
from .own_gradients import own_gradient

Source = Callable[[str], Tensor]
Wanted = Sequence[tuple[TensorInfo, Region]]


@runtime_checkable
class Parts(Protocol):
    """A source that need not make whole tensors."""

    def parts(self, wanted: Wanted, device: torch.device) -> list[Tensor]:
        """The wanted parts, in their order and in memory of their own."""


AnySource = Source | Mapping[str, Tensor] | Parts


class Node:
    """A module's place in the tree of leaves: `p.h[0].weight`, `p["odd name"]`."""

    def __getitem__(self, key: int | str) -> Any:
        return getattr(self, str(key))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this rank has no leaf or module {name!r} here")


@dataclass
class Shard:
    """`data` is an `nn.Parameter` for a parameter, else a plain tensor."""

    tensor: TensorInfo
    region: Region
    data: Tensor
    renewed: int = 0
    """How often a forward has given it another value, which is not counted where `data` is."""

    @property
    def factors(self) -> list[list[int]]:
        return local_factors(self.region, self.tensor.factors)


@dataclass
class Leaves:
    """The leaves of one forward: a new object whenever any of them had to be made again."""

    tree: Node
    tensors: list[Tensor]
    pointers: list[int]
    # The leaves at each place in the tree, by its `id`; one with several names is where the first one says.
    places: dict[int, list[int]]
    # Whether some are there only while they are gathered.
    come_and_go: bool = False

    def __post_init__(self) -> None:
        self.index = {id(leaf): at for at, leaf in enumerate(self.tensors)}
        self._below: dict[int, frozenset[int]] = {}
        if self.come_and_go:
            self._know(self.tree)

    def at(self, place: Any) -> list[int]:
        """The leaves that a program means by a place in the tree, or by a leaf."""
        return [self.index[id(place)]] if id(place) in self.index else self.places[id(place)]

    def below(self, place: Any) -> frozenset[int]:
        """The `id`s of all leaves that are reached from a place in the tree, or of a leaf itself."""
        return self._below.get(id(place), frozenset())

    def _know(self, place: Any) -> frozenset[int]:
        below = frozenset([id(place)])
        if isinstance(place, Node):
            below = frozenset().union(*map(self._know, place.__dict__.values()))
        self._below[id(place)] = below
        return below


class Arriving:
    """Gradients of a backward that autograd accumulates itself; all programs of a model share one."""

    def __init__(self) -> None:
        self.gradients: dict[int, Tensor] = {}
        self.expected: set[int] = set()

    def takes(self, parameter: Tensor) -> bool:
        return id(parameter) in self.expected


class Shards:
    """All shards of one rank, in the order of its table."""

    def __init__(
        self,
        program: Program,
        rank: int,
        device: torch.device,
        make: Callable[[TensorInfo, Region], Tensor],
    ):
        """`make` gives a shard's data; `device` is where code runs."""
        self.program, self.rank, self.device = program, rank, device
        self.role, self.table = program.role(rank), program.ranks[rank]
        wanted = [(program.tensors[number], region) for number, region in self.table.shards]
        self.held = [Shard(tensor, region, make(tensor, region)) for tensor, region in wanted]
        self.renew_copies()
        self._leaves: Leaves | None = None
        # That of the latest leaves.
        self.step: object = None
        # By leaf, those of this step that were made again since a forward has written its parameter.
        self._written: dict[int, list[Tensor]] = {}
        # Gradients of this step that have arrived, and are not yet those of the shards.
        self.arrived: dict[int, Tensor] = {}
        self.arriving = Arriving()
        self._owners: dict[int, list[tuple[int, int, Region]]] = {}

    @staticmethod
    def loaded(program: Program, rank: int, source: AnySource, device: torch.device) -> Shards:
        """Parts of full tensors, in memory of their own."""
        parts = iter(_parts(program, rank, source, device))

        def make(tensor: TensorInfo, region: Region) -> Tensor:
            data = _where_it_lives(next(parts), tensor, device)
            return nn.Parameter(data, requires_grad=tensor.trainable) if tensor.kind == "param" else data

        return Shards(program, rank, device, make)

    def copied(self) -> Shards:
        """The same values in memory of their own, without gradients."""
        values = iter([shard.data for shard in self.held])

        def make(tensor: TensorInfo, region: Region) -> Tensor:
            old = next(values)
            data = _where_it_lives(old.detach().clone(), tensor, self.device)
            return nn.Parameter(data, requires_grad=old.requires_grad) if tensor.kind == "param" else data

        return Shards(self.program, self.rank, self.device, make)

    def renew_copies(self) -> None:
        """Also after the shards have got other memory."""
        made = [(self.held[it.shard], it) for it in self.table.copies]
        self.copies = [Copy(held, self.device, it) for held, it in made]
        leaves = enumerate(self.table.leaves)
        self._of_copies = {
            at: self.copies[leaf.copy].leaf(leaf.region) for at, leaf in leaves if leaf.copy is not None
        }

    def on_host(self) -> list[Tensor]:
        """The parameters that live there, and their gradients."""
        held = [shard.data for shard in self.held if shard.tensor.on_host]
        return [*held, *(data.grad for data in held if data.grad is not None)]

    def versions(self) -> list[int]:
        """Of what is gathered: others once it has been written to."""
        return [copy.shard.data._version for copy in self.copies]

    def leaves(self, step: object = None) -> Leaves:
        """The leaves for a forward. Those whose shard has got other memory are made again.

        So are casts, unless it is still the same step: nothing tells all writing into a shard's memory.
        """
        old = self._leaves
        same, self.step = step is not None and step is self.step, step
        if not same:
            self._written.clear()
        made = [self._leaf(at, old, same) for at in range(len(self.table.leaves))]
        if old is None or any(a is not b for a, b in zip(made, old.tensors, strict=True)):
            pointers = [self._shard_of(at).data.data_ptr() for at in range(len(made))]
            tree, places = self._tree(made)
            self._leaves = old = Leaves(tree, made, pointers, places, bool(self.copies))
        return old

    def leaves_of_next(self, step: object) -> Leaves:
        """For a step that begins before the one before it has ended: gradients of the two do not add up."""
        self._leaves = None
        return self.leaves(step)

    def earlier(self, shard: int) -> list[Region]:
        """What shards before this one have of its region; those of lower ranks come first."""
        if not self._owners:
            for rank, table in enumerate(self.program.ranks):
                for at, (tensor, region) in enumerate(table.shards):
                    self._owners.setdefault(tensor, []).append((rank, at, region))
        tensor, region = self.table.shards[shard]
        shared = [
            meet(region, other) for rank, at, other in self._owners[tensor] if (rank, at) < (self.rank, shard)
        ]
        return [overlap for overlap in shared if numel(overlap)]

    def _shard_of(self, leaf: int) -> Shard:
        return self.held[self.table.leaves[leaf].shard]

    def _leaf(self, at: int, old: Leaves | None, same_step: bool) -> Tensor:
        copy = self.table.leaves[at].copy
        if copy is not None:
            return self._of_copies[at]
        shard, part = self._shard_of(at), self._part(at)
        # Who steps a parameter writes elsewhere then, and is no matter of what the leaf was saved for.
        base = shard.data.data if self.program.goes_on else shard.data.detach()
        pointer = base.data_ptr()
        read_as = shard.tensor.read_as or base.dtype
        is_cast = read_as != base.dtype
        if old and old.pointers[at] == pointer:
            alive = same_step if is_cast else part is None or is_view(old.tensors[at], base)
            if alive or (same_step and self.program.goes_on):
                return old.tensors[at]
        leaf = base if part is None else cut(base, shard.factors, part)
        leaf = leaf.to(read_as).requires_grad_(shard.tensor.trainable)
        if shard.tensor.trainable:
            own_gradient(leaf)
        if is_cast and shard.tensor.trainable:
            leaf.grad_dtype = base.dtype
        if old and same_step and leaf.requires_grad:  # backwards of micro-batches are still to come
            self._written.setdefault(at, []).append(old.tensors[at])
        elif old and old.tensors[at].grad is not None:  # a micro-batch has left its gradient here
            leaf.grad = old.tensors[at].grad
        return leaf

    def _part(self, leaf: int) -> Region | None:
        """The region of a leaf inside its shard; `None` for all of it."""
        shard, region = self._shard_of(leaf), self.table.leaves[leaf].region
        return None if region == shard.region else within(region, shard.region)

    def _tree(self, leaves: list[Tensor]) -> tuple[Node, dict[int, list[int]]]:
        root = Node()
        places: dict[int, list[int]] = {}
        for at, ((tensor, number), leaf) in enumerate(zip(self.role.leaves, leaves, strict=True)):
            for name in self.program.tensors[tensor].names:
                around = _plant(root, name + (f"__{number}" if number else ""), leaf)
                for node in around if name == self.program.tensors[tensor].names[0] else ():
                    places.setdefault(id(node), []).append(at)
        return root, places

    def bring_together(self, leaves: Leaves) -> None:
        """To these leaves, the gradients of those of other micro-batches of the step."""
        for at, others in self._written.items():
            assert self._leaves is not None
            leaf = leaves.tensors[at]
            for other in (*others, self._leaves.tensors[at]):
                if other is not leaf and other.grad is not None:
                    leaf.grad = other.grad if leaf.grad is None else leaf.grad + other.grad
                    other.grad = None

    @torch.no_grad()
    def take_gradients(self, leaves: Leaves) -> None:
        """Moves the gradients of the leaves to the shards, adding to what is there."""
        for at, leaf in enumerate(leaves.tensors):
            grad = leaf.grad
            if grad is not None:
                leaf.grad = None
                self.add_gradient(self.table.leaves[at].shard, writable(grad), self._part(at))
        arrived, self.arrived = self.arrived, {}
        for shard, grad in arrived.items():
            self.add_gradient(shard, grad)

    def arrives(self, shard: int, grad: Tensor) -> None:
        """A gradient that is part of those of the step."""
        before = self.arrived.get(shard)
        self.arrived[shard] = grad if before is None else before.add_(grad)

    def add_gradient(self, shard: int, grad: Tensor, part: Region | None = None) -> None:
        held = self.held[shard]
        data = held.data
        if not data.requires_grad:
            return
        grad = grad.to(data.dtype)
        if self.arriving.takes(data):
            gradients = self.arriving.gradients
            gradients[id(data)] = _sum(held, gradients.get(id(data)), grad, part)
        else:
            data.grad = _sum(held, data.grad, grad, part)

    @contextmanager
    def collecting(self, wanted: bool = True) -> Iterator[dict[int, Tensor]]:
        """What is added meanwhile is not put into `.grad`: gradients by the `id` of their parameters."""
        arriving = self.arriving
        arriving.gradients, arriving.expected = {}, {id(shard.data) for shard in self.held if wanted}
        try:
            yield arriving.gradients
        finally:
            arriving.gradients, arriving.expected = {}, set()

    def update(self, shard: int, value: Tensor) -> None:
        """New memory instead of writing into the old: backward may still need the old value."""
        self.held[shard].renewed += 1
        held = self.held[shard].data
        held.data = value.detach().clone(memory_format=torch.contiguous_format)


def own_copy(full: Tensor, tensor: TensorInfo, region: Region, device: torch.device) -> Tensor:
    """A region of a full tensor in memory of its own, of no more than its size.

    What lives on the host is there.
    """
    device = torch.device("cpu") if tensor.on_host else device
    with torch.no_grad():
        part = full.detach()
        if region != whole(tensor.factors):
            part = cut(part, tensor.factors, region)
        return torch.empty(part.shape, dtype=tensor.dtype, device=device).copy_(part)


def _where_it_lives(data: Tensor, tensor: TensorInfo, device: torch.device) -> Tensor:
    """From memory that is pinned copies to a GPU go beside what is computed."""
    if not tensor.on_host:
        return data
    return data.cpu().pin_memory() if device.type == "cuda" else data.cpu()


def without_value(tensor: Tensor) -> Tensor:
    """On `meta`: shape, dtype, and whether it is a parameter and requires a gradient."""
    empty = torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _sum(shard: Shard, old: Tensor | None, grad: Tensor, part: Region | None) -> Tensor:
    """In place of what was there before; `part` says where in the shard the gradient belongs."""
    if part is None:
        return grad if old is None else plain(old).add_(grad)
    if old is None:
        old = torch.zeros_like(shard.data, memory_format=torch.contiguous_format)
    old = plain(old).detach().contiguous()
    there = window(old, shard.factors, part)
    there.add_(grad.reshape(there.shape))
    return old


def is_view(leaf: Tensor, base: Tensor) -> bool:
    return leaf.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


def _plant(root: Node, name: str, leaf: Tensor) -> list[Node]:
    """The places from the root on that hold it then."""
    *path, last = name.split(".")
    nodes = [root]
    for step in path:
        nodes.append(nodes[-1].__dict__.setdefault(step, Node()))
    nodes[-1].__dict__[last] = leaf
    return nodes


def _parts(program: Program, rank: int, source: AnySource, device: torch.device) -> Iterable[Tensor]:
    wanted = [(program.tensors[number], region) for number, region in program.ranks[rank].shards]
    if isinstance(source, Parts):
        return source.parts(wanted, device)
    get = _lookup(source) if isinstance(source, Mapping) else source
    return (own_copy(_full(get, tensor), tensor, region, device) for tensor, region in wanted)


def _lookup(values: Mapping[str, Tensor]) -> Source:
    return lambda name: values[name]


def _full(source: Source, tensor: TensorInfo) -> Tensor:
    """The whole tensor under any of its names."""
    value = None
    for name in tensor.names:
        try:
            value = source(name)
            break
        except KeyError:
            continue
    if value is None:
        raise RuntimeFault("SW0710", f"there is no value for {tensor.kind} {tensor.names[0]!r}")
    if tuple(value.shape) != tensor.shape:
        raise RuntimeFault(
            "SW0710",
            f"{tensor.kind} {tensor.names[0]!r} has shape {tuple(value.shape)},"
            f" the program has {tensor.shape}",
        )
    return value
