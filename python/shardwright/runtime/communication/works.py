"""Communications that are under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Work(Protocol):
    def wait(self) -> Any: ...


class Sent(Work, Protocol):
    def is_completed(self) -> bool:
        """Whether its receiver has all of it; some cannot tell before they are waited for."""


class Done:
    def wait(self) -> None:
        return None

    def is_completed(self) -> bool:
        return True


class All:
    """Several messages, with what they are sent of."""

    def __init__(self, works: Sequence[Work], sent: Tensor):
        self._works, self._sent = works, sent

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class Summed:
    """The rows of all ranks of a group, summed in their order; what has arrived is not kept for longer.

    The first that arrives does so in `out`: of two ranks nothing more is needed.
    """

    def __init__(self, works: Sequence[Work], out: Tensor, others: list[Tensor]):
        self._coming: tuple[Sequence[Work], list[Tensor]] | None = (works, others)
        self._out = out

    def wait(self) -> None:
        if self._coming is not None:
            works, others = self._coming
            for work in works:
                work.wait()
            _add_up(self._out, others)
            self._coming = None


class Sorted:
    """Rows that arrive in the order of a sorted group."""

    def __init__(self, work: Work, rows: Tensor, arrived: Tensor, order: list[int]):
        self._work, self._rows, self._arrived, self._order = work, rows, arrived, order

    def wait(self) -> None:
        self._work.wait()
        # Not by an index, which would come from the host.
        torch._foreach_copy_([self._rows[at] for at in self._order], list(self._arrived))


def _add_up(out: Tensor, others: Sequence[Tensor]) -> None:
    """A sum of several in a narrow type is rounded once."""
    narrow = len(others) > 1 and out.dtype in (torch.bfloat16, torch.float16)
    total = out.float() if narrow else out
    for row in others:
        total.add_(row)
    if narrow:
        out.copy_(total)
