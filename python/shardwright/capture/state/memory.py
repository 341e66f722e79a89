"""Which tensors of a module lie in the same memory, whatever their names and objects."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import combinations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...errors import CaptureError

# Elements that are marked at most to see whether two tensors meet.
_MARKED = 2**28


def identity(tensor: Tensor) -> Hashable:
    """Equal for what is one tensor. A parameter that is trained is one object: an optimizer goes by that."""
    if tensor.layout is not torch.strided or (isinstance(tensor, nn.Parameter) and tensor.requires_grad):
        return id(tensor)
    place = (_storage(tensor), tensor.storage_offset())
    noted = (tensor.is_conj(), tensor.is_neg())
    return type(tensor), *place, tuple(tensor.shape), tensor.stride(), tensor.dtype, *noted


def has_no_value(tensor: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def refuse_shared(module: nn.Module, updated: Iterable[str]) -> None:
    """Two parameters or buffers that meet in memory and are not one tensor: to change one would change
    the other, and the parallel model holds them apart."""
    changing = set(updated)
    held: dict[Hashable, tuple[str, Tensor, bool]] = {}
    for name, parameter in module.named_parameters():
        changes = parameter.requires_grad or name in changing
        held.setdefault(identity(parameter), (f"parameter `{name}`", parameter, changes))
    for name, buffer in module.named_buffers():
        held.setdefault(identity(buffer), (f"buffer `{name}`", buffer, name in changing))
    homes: dict[int, list[tuple[str, Tensor, bool]]] = {}
    for entry in held.values():
        if entry[1].layout is torch.strided and entry[1].numel():
            homes.setdefault(_storage(entry[1]), []).append(entry)
    for home in homes.values():
        for (one, first, changes), (other, second, changes_too) in combinations(home, 2):
            if (changes or changes_too) and meet(first, second):
                raise _shared(one, other)


def meet(one: Tensor, other: Tensor) -> bool:
    """Whether an element of one is an element of the other."""
    if _storage(one) != _storage(other):
        return False
    (start, end), (begin, stop) = _span(one), _span(other)
    if end <= begin or stop <= start:
        return False
    low, high = min(start, begin), max(end, stop)
    if one.dtype != other.dtype or high - low > _MARKED:
        return True
    size = one.element_size()
    marks = torch.zeros((high - low) // size + 1, dtype=torch.bool, device="cpu")
    marks.as_strided(one.shape, one.stride(), (start - low) // size).fill_(True)
    return bool(marks.as_strided(other.shape, other.stride(), (begin - low) // size).any())


class Aliases:
    """What lies in the memory of a module's parameters and buffers."""

    def __init__(self, module: nn.Module):
        self._homes: dict[int, list[Tensor]] = {}
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.layout is torch.strided and tensor.numel():
                self._homes.setdefault(_storage(tensor), []).append(tensor)

    def base(self, tensor: Tensor) -> Tensor | None:
        """The parameter or buffer that a tensor lies in, as a whole or in part."""
        if tensor.layout is not torch.strided or not tensor.numel():
            return None
        return next((base for base in self._homes.get(_storage(tensor), ()) if meet(base, tensor)), None)


def seen_in(base: Tensor, tensor: Tensor, now: Tensor) -> Tensor:
    """What `tensor`, which lies in `base`, is where `now` stands for that."""
    if tensor.grad_fn is None:
        now = now.detach()
    if tensor.is_conj() != base.is_conj():
        now = now.conj()
    if tensor.is_neg() != base.is_neg():
        now = torch._neg_view(now)
    if (tensor.shape, tensor.stride()) == (base.shape, base.stride()) and _starts(base) == _starts(tensor):
        return now
    return now.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - base.storage_offset())


def _starts(tensor: Tensor) -> int:
    return int(tensor.storage_offset())


def _span(tensor: Tensor) -> tuple[int, int]:
    """The bytes from the first element to the end of the last."""
    last = sum(int((size - 1) * step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + (last + 1) * tensor.element_size()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _shared(one: str, other: str) -> CaptureError:
    return CaptureError(
        "SW0136",
        f"{one} and {other} share memory, but are not one tensor",
        why="a change of one changes the other, but not once ranks hold shards of two tensors",
        fix="tie them as one object (`b.weight = a.weight`, without `.data`), make one of them in the"
        " forward, or give it memory of its own with `.clone()`",
    )
