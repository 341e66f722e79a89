"""Makes the values that a tape describes, few of them in memory at a time.

Only entries that something wanted depends on are replayed. Random ones, though, move the generator:
those before the last that is needed are all replayed, into memory that is freed at once. A wanted
tensor is handed out after the last entry that writes to its memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Ref:
    """Where a tensor lies in a memory, which has a number."""

    memory: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Draw:
    """A draw has a number. Before it the generator got a seed, or the state it had before another draw."""

    number: int
    seed: int | None = None
    restored: int | None = None


@dataclass(frozen=True)
class Entry:
    """One call. Of the memories in `writes`, those in `fills` have no part that was there before."""

    func: Any
    args: Any
    kwargs: Any
    results: list[Ref | None]
    reads: set[int]
    writes: set[int]
    fills: set[int]
    draw: Draw | None


def replay(
    seed: int, entries: Sequence[Entry], sizes: Sequence[int], wanted: Mapping[Any, Ref]
) -> Iterator[tuple[Any, Tensor]]:
    """Each wanted tensor with its key; its memory is used again once the next is asked for."""
    entries = list(entries)
    last = {memory: at for at, entry in enumerate(entries) for memory in entry.writes}
    due: dict[int, list[Any]] = {}
    for key, ref in wanted.items():
        due.setdefault(last[ref.memory], []).append(key)
    ready = {at: {wanted[key].memory for key in keys} for at, keys in due.items()}
    needed, _ = _needed(entries, ready, draws_before=0)
    draws = [at + 1 for at in needed if entries[at].draw is not None]
    needed, dead = _needed(entries, ready, draws_before=max(draws, default=0))
    machine = _Machine(seed, sizes, _restored(entries))
    for at in sorted(needed):
        with torch.no_grad():
            machine.run(entries[at])
        yield from ((key, machine.tensor(wanted[key])) for key in due.get(at, []))
        for memory in dead[at]:
            machine.memories.pop(memory, None)


def _needed(
    entries: Sequence[Entry], ready: Mapping[int, set[int]], draws_before: int
) -> tuple[set[int], dict[int, set[int]]]:
    """The entries to replay, and after each the memories that nothing reads any more."""
    live: set[int] = set()
    needed: set[int] = set()
    dead: dict[int, set[int]] = {}
    for at in reversed(range(len(entries))):
        entry = entries[at]
        after = live | ready.get(at, set())
        if after & entry.writes or (entry.draw is not None and at < draws_before):
            needed.add(at)
            dead[at] = (entry.reads | entry.writes) - live
            live = (after - entry.fills) | entry.reads
    return needed, dead


def _restored(entries: Sequence[Entry]) -> set[int]:
    return {e.draw.restored for e in entries if e.draw is not None and e.draw.restored is not None}


@dataclass
class _Machine:
    seed: int
    sizes: Sequence[int]
    kept_draws: set[int]
    memories: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.generator = torch.Generator()
        self.generator.manual_seed(self.seed)
        self._states: dict[int, Tensor] = {}

    def tensor(self, ref: Ref) -> Tensor:
        if ref.memory not in self.memories:
            self.memories[ref.memory] = torch.UntypedStorage(self.sizes[ref.memory])
        empty = torch.empty(0, dtype=ref.dtype)
        return empty.set_(self.memories[ref.memory], ref.offset, ref.size, ref.stride)  # type: ignore[call-overload]

    def run(self, entry: Entry) -> None:
        args, kwargs = pytree.tree_map_only(Ref, self.tensor, (entry.args, entry.kwargs))
        if entry.draw is None:
            results = entry.func(*args, **kwargs)
        else:
            self._prepare(entry.draw)
            results = _drawn(entry.func, args, kwargs, self.generator)
        for ref, result in zip(entry.results, pytree.tree_leaves(results), strict=True):
            if ref is not None and ref.memory in entry.fills and ref.memory not in self.memories:
                self._bind(ref, result)

    def _bind(self, ref: Ref, made: Tensor) -> None:
        lies = (tuple(made.shape), tuple(made.stride()), made.storage_offset())
        if lies == (ref.size, ref.stride, ref.offset):
            self.memories[ref.memory] = made.untyped_storage()
        else:
            self.tensor(ref).copy_(made)

    def _prepare(self, draw: Draw) -> None:
        if draw.number in self.kept_draws:
            self._states[draw.number] = self.generator.get_state()
        if draw.seed is not None:
            self.generator.manual_seed(draw.seed)
        elif draw.restored is not None:
            self.generator.set_state(self._states[draw.restored])


# Ranks may be threads, and there is one default generator.
_drawing = threading.Lock()


def _drawn(func: Any, args: Any, kwargs: Any, generator: torch.Generator) -> Any:
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func(*args, **{**kwargs, "generator": generator})
    with _drawing:
        before = torch.get_rng_state()
        torch.set_rng_state(generator.get_state())
        try:
            return func(*args, **kwargs)
        finally:
            generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)
