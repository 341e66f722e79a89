"""What tensors are on their way, for types that no backend moves or adds: neither NCCL nor Gloo has 16-bit
integers, logical or complex numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from .works import Work

MOVED = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    }
)
# In which integers are added that no backend adds.
WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}


class Narrowed:
    """A result in a wider type, which gets to its place when it is there."""

    def __init__(self, work: Work, x: Tensor, wide: Tensor):
        self._work, self._x, self._wide = work, x, wide

    def wait(self) -> None:
        self._work.wait()
        self._x.copy_(self._wide)


def moved(x: Tensor) -> Tensor:
    """The same memory, as bytes where a backend does not know the type."""
    if x.dtype in MOVED:
        return x
    return (x if x.dim() else x.view(1)).view(torch.uint8)


def added(x: Tensor, op: str) -> tuple[Tensor, str]:
    """The same values in a type that backends add, if possible in the same memory, and how they are put
    together. Logical ones add up to whether there is any."""
    if x.dtype in WIDER:
        return x.to(WIDER[x.dtype]), op
    if x.dtype == torch.bool:
        return moved(x), "max" if op == "sum" else op
    if x.is_complex():
        if op != "sum":
            raise TypeError(f"complex numbers have no {op}")
        return torch.view_as_real(x), op
    return x, op


def placed(work: Work, x: Tensor, sent: Tensor) -> Work:
    """What was `added` is in `x` once it is waited for."""
    return Narrowed(work, x, sent) if x.dtype in WIDER else work
