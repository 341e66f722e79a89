"""What a rank keeps on the host until backward needs it.

Whole storages are sent, each once, so that views of one come back as views of one. What a rank has
anyway, its leaves and what a forward is given, stays where it is. On a GPU copies are made beside what is
computed, to and from pinned memory; on a CPU at once, in memory that counts as the host's. What is copied
stays here until `COPIES_IN_FLIGHT` more were sent, or as many came back: so what is needed is known before.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..._core import COPIES_IN_FLIGHT
from ...errors import RuntimeFault


class Host:
    """The host's memory of one rank."""

    def __init__(self, device: torch.device):
        self.device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._held: weakref.WeakSet[_Storage] = weakref.WeakSet()
        self._values: dict[int, weakref.ref[Tensor]] = {}
        # What is on its way, and what tells when it is there.
        self._copying: deque[tuple[list[Tensor], Any]] = deque()

    def copies(self) -> list[Tensor]:
        """What is on the host now."""
        values = (reference() for reference in self._values.values())
        sent = (storage.there for storage in self._held)
        return [x for x in (*sent, *values) if x is not None]

    def has(self, x: Tensor) -> bool:
        """Whether it is a value that `keep` gave."""
        known = self._values.get(id(x))
        return known is not None and known() is x

    def keep(self, x: Tensor) -> Tensor:
        """A value that others than backward read, which `settle` first."""
        there = self.room(x.numel() * x.element_size()).view(x.dtype).as_strided(x.size(), x.stride())
        there.copy_(x, non_blocking=True)
        number = id(there)
        self._values[number] = weakref.ref(there, lambda _: self._values.pop(number, None))
        return there

    def hand(self, x: Tensor) -> tuple[Tensor, Any]:
        """What is the host's from now on, and what tells when it is there."""
        there = self.room(x.numel() * x.element_size()).view(x.dtype).view(x.shape)
        with self.beside():
            there.copy_(x, non_blocking=True)
        if self._side is not None:
            x.record_stream(self._side)
        return there, self.mark()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Copies go beside what is computed, and after what was computed before."""
        self._follow()
        with self._beside():
            yield

    def mark(self) -> Any:
        """What tells when all that goes beside is done."""
        return None if self._side is None else self._side.record_event()

    def settle(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream(self.device).synchronize()

    def bring(self, there: Tensor) -> Tensor:
        return torch.empty_like(there, device=self.device).copy_(there, non_blocking=True)

    def send(self, storages: Iterable[_Storage]) -> None:
        going = [(storage, storage.here) for storage in storages if storage.here is not None]
        if going and len(self._copying) == COPIES_IN_FLIGHT:
            self._sent_first()
        self._follow()
        for storage, here in going:
            there = self.room(here.numel())
            with self._beside():
                there.copy_(here, non_blocking=True)
            storage.here, storage.there = None, there
            self._held.add(storage)
        if going:
            self._copying.append(([here for _, here in going], self.mark()))

    def _sent_first(self) -> None:
        """What was sent first is there, so its memory is free."""
        if self._copying:
            _, event = self._copying.popleft()
            self.wait(event)

    def fetch(self, storages: Iterable[_Storage]) -> Any:
        """What tells when they are back."""
        self._sent_first()
        arriving = []
        for storage in storages:
            there = storage.there
            if there is not None:
                here = torch.empty(there.numel(), dtype=torch.uint8, device=self.device)
                arriving.append((storage, here, there))
        self._follow()
        for storage, here, there in arriving:
            with self._beside():
                here.copy_(there, non_blocking=True)
            if self._side is not None:
                here.record_stream(self._side)
            storage.here, storage.there = here, None
        return self.mark()

    def wait(self, event: Any) -> None:
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    def _follow(self) -> None:
        """What is copied was computed, and memory that it is copied to is free."""
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream(self.device))

    def _beside(self) -> Any:
        return nullcontext() if self._side is None else torch.cuda.stream(self._side)

    def room(self, size: int) -> Tensor:
        try:
            return self.empty(size)
        except (RuntimeError, MemoryError) as error:
            held = sum(there.nbytes for there in self.copies())
            raise RuntimeFault(
                "SW0774",
                f"the host has no room for {size} bytes that the plan offloads",
                why=f"{held} bytes of this rank are there already: {str(error).splitlines()[0]}",
                fix='let the plan offload less (`offload "h.*" but "h.0"`), or give the host more memory'
                " for each rank",
            ) from error

    def empty(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._side is not None)


class _Storage:
    """Bytes behind tensors, here or on the host."""

    def __init__(self, x: Tensor):
        self.here: Tensor | None = torch.empty(0, dtype=torch.uint8, device=x.device).set_(
            x.untyped_storage()
        )
        self.there: Tensor | None = None


@dataclass
class _Note:
    """How a tensor lies in its storage."""

    storage: _Storage
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class Away:
    """What goes to the host together, and comes back together.

    Notes hold storages, so that each is free once nobody holds a note of it: autograd lets go of what it
    saved for an operator when that operator's backward has run.
    """

    def __init__(self, host: Host, stays: frozenset[int]):
        """`stays` are the addresses of storages that are there anyway."""
        self._host, self._stays = host, stays
        self._storages: dict[int, _Storage] = {}
        self._event: Any = None

    def hooks(self) -> Any:
        return saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or not _can_go(x):
            return x
        if _address(x) in self._stays:
            # A view of a leaf, which may be what its own backward keeps.
            return x if x.is_leaf else x.detach()
        address = _address(x)
        storage = self._storages.get(address)
        if storage is None:
            self._storages[address] = storage = _Storage(x)
        return _Note(storage, x.dtype, int(x.storage_offset()), x.size(), x.stride())

    def unpack(self, kept: Any) -> Any:
        if not isinstance(kept, _Note):
            return kept
        here = kept.storage.here
        assert here is not None, "what is on the host is fetched before it is read"
        restored = torch.empty(0, dtype=kept.dtype, device=here.device)
        return restored.set_(here.untyped_storage(), kept.offset, kept.size, kept.stride)

    def send(self) -> None:
        self._host.send(self._storages.values())

    def fetch(self) -> None:
        self._event = self._host.fetch(self._storages.values())
        self._storages = {}

    def wait(self) -> None:
        self._host.wait(self._event)


class KeptAway:
    """Values that go to the host."""

    def __init__(self, away: Away, values: Sequence[Tensor]):
        self.away = away
        self._notes = [(away.pack(x.detach()), x.requires_grad) for x in values]
        away.send()

    def take(self) -> tuple[Tensor, ...]:
        self.away.wait()
        restored = [(self.away.unpack(note), needs) for note, needs in self._notes]
        return tuple(x.requires_grad_(needs) for x, needs in restored)


def _can_go(x: Tensor) -> bool:
    return x.layout == torch.strided and x.numel() > 0 and not x.is_conj() and not x.is_neg()


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
