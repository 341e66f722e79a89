"""Links that buffer nothing, between ranks that are threads of one process.

On a line each of its two ranks does one thing after the other, in the order in which it begins them. A
message moves when it is next for the rank that sends it and its receive for the other one; until then it is
where the sender has it. Both ranks go on meanwhile, and wait where they ask for it. So it is with large
messages: Gloo announces them and sends them once their receiver has room, NCCL's kernels meet, one behind
the other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from ...errors import RuntimeFault

# Two ranks, the smaller one first, and what tells their lines apart.
Way = tuple[int, int, object]


@dataclass
class End:
    """A message at one of its ranks."""

    rank: int
    sends: bool
    number: int
    x: Tensor
    is_done: bool = False


class Links:
    def __init__(self) -> None:
        self._begun: dict[Way, dict[int, deque[End]]] = {}

    def begin(self, way: Way, end: End) -> None:
        low, high, _ = way
        begun = self._begun.setdefault(way, {low: deque(), high: deque()})
        begun[end.rank].append(end)
        while all(begun.values()) and _moves(begun[low][0], begun[high][0]):
            begun[low].popleft()
            begun[high].popleft()


def _moves(one: End, other: End) -> bool:
    if one.sends == other.sends:
        return False
    sender, receiver = (one, other) if one.sends else (other, one)
    _refuse_another(sender, receiver)
    receiver.x.copy_(sender.x)
    one.is_done = other.is_done = True
    return True


def _refuse_another(sender: End, receiver: End) -> None:
    sent, wanted = ((end.number, tuple(end.x.shape), end.x.dtype) for end in (sender, receiver))
    if sent != wanted:
        raise RuntimeFault(
            "SW0717",
            f"rank {receiver.rank} receives something else than rank {sender.rank} sends",
            why=f"the one {wanted}, the other {sent}: number, shape and dtype",
        )
