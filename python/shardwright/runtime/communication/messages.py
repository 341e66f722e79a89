"""Python values between processes, and bytes of tensors; neither needs numpy."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .watch import wait_for

# Between two ranks of the host's group, messages of totals and nothing else have this tag.
_TOTAL = 1 << 20


def all_gathered(value: Any, group: Any) -> list[Any]:
    """The picklable values of all ranks of a group, in their order. `group` is one of the host's."""
    packed, sizes = _announced(value, group)
    rows = torch.empty(len(sizes), max(sizes), dtype=torch.uint8)
    dist.all_gather(list(rows), _padded(packed, max(sizes)), group=group)
    return _opened(rows, sizes)


def gathered(value: Any, group: Any, *, first: bool) -> list[Any] | None:
    """The same on rank 0, the `first`, alone; the others get `None`."""
    packed, sizes = _announced(value, group)
    rows = torch.empty(len(sizes), max(sizes), dtype=torch.uint8) if first else None
    dist.gather(_padded(packed, max(sizes)), None if rows is None else list(rows), dst=0, group=group)
    return None if rows is None else _opened(rows, sizes)


def total(x: Tensor, group: Any, rank: int, world: int) -> Tensor:
    """The sum of few numbers over all ranks of the world, in as many messages as `world` has bits.

    Gloo's own sum goes around a ring, which takes a thousand ranks tens of milliseconds. `group` is that of
    all hosts. It gives up on ranks that left.
    """
    pairs = 1 << (world.bit_length() - 1)
    if rank >= pairs:
        # Who is more than a power of two has another count it.
        _sent(x, rank - pairs, group)
        return _received(x, rank - pairs, group)
    if rank + pairs < world:
        x = x + _received(x, rank + pairs, group)
    distance = 1
    while distance < pairs:
        theirs = torch.empty_like(x)
        coming = dist.irecv(theirs, rank ^ distance, group=group, tag=_TOTAL)
        _sent(x, rank ^ distance, group)
        wait_for(coming)
        x = x + theirs
        distance *= 2
    if rank + pairs < world:
        _sent(x, rank + pairs, group)
    return x


def _sent(x: Tensor, peer: int, group: Any) -> None:
    wait_for(dist.isend(x, peer, group=group, tag=_TOTAL))


def _received(x: Tensor, peer: int, group: Any) -> Tensor:
    theirs = torch.empty_like(x)
    wait_for(dist.irecv(theirs, peer, group=group, tag=_TOTAL))
    return theirs


def bytes_of(x: Tensor) -> bytes:
    """The bytes of a tensor's values, in the order of its dims."""
    flat = x.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b""


def tensor_of(data: bytes) -> Tensor:
    """Bytes, of which there are some, as a tensor of its own."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _announced(value: Any, group: Any) -> tuple[Tensor, list[int]]:
    """A value as bytes, and how many each rank has."""
    packed = tensor_of(pickle.dumps(value))
    sizes = torch.empty(dist.get_world_size(group), 1, dtype=torch.int64)
    dist.all_gather(list(sizes), torch.tensor([packed.numel()]), group=group)
    return packed, sizes.flatten().tolist()


def _padded(x: Tensor, size: int) -> Tensor:
    return torch.cat([x, x.new_zeros(size - x.numel())])


def _opened(rows: Tensor, sizes: list[int]) -> list[Any]:
    return [pickle.loads(bytes_of(row[:size])) for row, size in zip(rows, sizes, strict=True)]
