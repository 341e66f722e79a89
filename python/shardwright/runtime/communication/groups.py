"""The process groups of this process: one for the same members, whichever model asks.

A group of NCCL has a stream, threads and memory of its own. NCCL connects where it is used first, and the
host waits there for the others. So all that is new is used once when it is made, in one order on all ranks:
afterwards no rank waits where another one waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

# A channel, and whether upwards from a smaller rank to a larger one.
Line = tuple[int, bool]
# Sender and receiver.
Pair = tuple[int, int]
Lines = Mapping[Line, Sequence[Pair]]

# Groups that nothing tells apart but their members.
COMMON = ""


@dataclass(eq=False)
class Group:
    members: frozenset[int]
    # Of `torch.distributed`; `None` stands for that of all ranks.
    handle: Any
    # Between whom it has been used.
    pairs: set[Pair] = field(default_factory=set)


@dataclass(frozen=True)
class Kind:
    """What a group is for, and how it is made."""

    backend: str | None
    timeout: timedelta | None
    use: str = COMMON


def line(sender: int, receiver: int, channel: int) -> Line:
    """Messages of a line come one behind the other. What two ranks send each other is on two: neither could
    receive before the other one has."""
    return channel, sender < receiver


def group_of(members: Iterable[int], kind: Kind) -> tuple[Group, bool]:
    """One with these members or more, and whether it is new. All ranks ask for the same ones in one order."""
    wanted = frozenset(members)
    made = _of_this_world().setdefault(kind, [])
    for group in made:
        if group.members == wanted or (kind.use and group.members > wanted):
            return group, False
    options: dict[str, Any] = {} if kind.timeout is None else {"timeout": kind.timeout}
    if kind.backend is not None:
        options["backend"] = kind.backend
    made.append(Group(wanted, dist.new_group(sorted(wanted), **options)))
    return made[-1], True


def first_uses(lines: Lines, rank: int) -> Iterator[tuple[Line, Pair]]:
    """The lines of a rank in the order in which all ranks use theirs for the first time."""
    for at, pairs in sorted(lines.items()):
        for pair in sorted(pairs):
            if rank in pair:
                yield at, pair


def count(rank: int) -> int:
    """The groups, besides that of all ranks, that this rank is a member of."""
    return sum(rank in group.members for made in _of_this_world().values() for group in made)


def let_go() -> None:
    """Groups end as soon as nobody else holds them."""
    global _made
    _made = (None, {})


_made: tuple[Any, dict[Kind, list[Group]]] = (None, {})


def _of_this_world() -> dict[Kind, list[Group]]:
    """None are left of a process group that was taken down."""
    global _made
    if _made[0] is not dist.group.WORLD:
        _made = (dist.group.WORLD, {})
    return _made[1]
