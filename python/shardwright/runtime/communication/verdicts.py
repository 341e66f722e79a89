"""What follows from where the ranks are: who has left the loop, who has failed, who waits in vain."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ...errors import RuntimeFault

# Python code of these places waits for other ranks, or stands right before or after that.
_OURS = os.path.dirname(os.path.dirname(__file__))
WAITS = (
    os.path.join(os.path.dirname(torch.__file__), "distributed"),
    os.path.join(_OURS, "communication", "comm.py"),
    os.path.join(_OURS, "communication", "watch.py"),
    os.path.join(_OURS, "execution", "buckets.py"),
    os.path.join(_OURS, "execution", "collectives.py"),
)
_HIDDEN = (os.path.dirname(_OURS), os.path.dirname(torch.__file__))


SILENT = "it gives no sign of life"
GONE = (
    "look for what ended it: what it says itself, the launcher's log, and the system's where memory ran out"
)


class Echo(RuntimeFault):
    """Another rank's end; `reason` is what all are told of it."""

    def __init__(self, *args: Any, reason: str = "", **kwargs: Any):
        self.reason = reason
        super().__init__(*args, **kwargs)


@dataclass(frozen=True)
class State:
    """Where a rank is. `kind` is empty outside of what all ranks do together."""

    call: int
    steps: int
    kind: str
    waiting: bool
    still: float
    """For how many seconds nothing of this has changed."""
    place: str
    failed: str = ""
    """The error that ended this call on this rank."""
    ended: bool = False
    lost: bool = False
    """Whether this rank's call ended because a connection to another broke: it is not the one that failed."""


def judge(states: Sequence[State], rank: int, patience: float) -> RuntimeFault | None:
    """Why this rank, which is inside a call, cannot get on; nothing if it may only be early."""
    state_here = states[rank]
    others = [(at, state) for at, state in enumerate(states) if at != rank]
    for at, state in others:
        if state.failed and state.call == state_here.call and not state.lost:
            return failure(f"rank {at}: {state.failed}")
    gone = [at for at, state in others if state.ended and state.call < state_here.call]
    if gone:
        return left_the_loop(gone, states[gone[0]].steps, "it has finished")
    return _deadlock(states, patience)


def failure(why: str) -> RuntimeFault:
    """`why` begins with the rank: `rank 1: ValueError: ...`."""
    who, _, error = why.partition(": ")
    fix = "look at what that rank itself says; all ranks have to do each step together"
    return Echo(
        "SW0783", f"{who} failed", why=error, fix=GONE if error.startswith(SILENT) else fix, reason=why
    )


def gone(ranks: Sequence[int]) -> str:
    """What to tell of ranks that have stopped without a word."""
    return f"{listed(ranks)}: {SILENT}, and connections to it broke: its process was ended"


def lost(error: BaseException) -> Echo:
    """Nobody says who has gone."""
    said = str(error).strip().partition("\n")[0]
    return Echo(
        "SW0783", "a rank is gone, and it is not known which", why=f"a connection broke: {said}", fix=GONE
    )


def silent(states: Sequence[State], rank: int, alive: Collection[int]) -> list[int]:
    """The ranks that have stopped without a word: those that are not `alive`, and have said of nothing that
    ended them."""
    others = ((at, state) for at, state in enumerate(states) if at != rank and at not in alive)
    return [at for at, state in others if not (state.ended or state.failed or state.lost)]


def left_the_loop(ranks: Sequence[int], steps: int, what: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0782",
        f"{listed(ranks)} left the loop after step {steps}",
        why=f"{what}, while the others wait for it in their next step",
        fix="let every rank take the same number of batches: give loaders of equal length,"
        " `sw.sampler`, or drop what is left over",
    )


def other_batches(ranks: Sequence[int], why: str) -> RuntimeFault:
    one = len(ranks) == 1
    return RuntimeFault(
        "SW0780",
        f"{listed(ranks)} "
        + ("was given another batch than the other ranks" if one else "were given different batches"),
        why=why,
        fix="seed the loader's shuffling equally on all ranks (a `generator` with one seed, no"
        ' DistributedSampler), or use inputs="local" with `sw.sampler`',
    )


def crossed(at: Sequence[str]) -> RuntimeFault:
    """Ranks that have met, and each for something else; all know where each is."""
    fault = _apart("the ranks meet in different places", at)
    fault.everywhere = True
    return fault


def described(kind: str, steps: int, place: str) -> str:
    what = f"waits in {kind}" if kind else "waits outside the model"
    return f"{what} after step {steps}" + (f" ({place})" if place else "")


def listed(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def place_of(frame: FrameType | None) -> tuple[str, bool]:
    """The user's own line that a thread executes, and whether it waits there for other ranks."""
    waiting = frame is not None and frame.f_code.co_filename.startswith(WAITS)
    while frame is not None and frame.f_code.co_filename.startswith((*_HIDDEN, "<")):
        frame = frame.f_back
    if frame is None:
        return "", waiting
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}", waiting


def _deadlock(states: Sequence[State], patience: float) -> RuntimeFault | None:
    """All ranks have waited for long, and not in the same call: a slow message would be in one."""
    if not all(state.ended or (state.waiting and state.still >= patience) for state in states):
        return None
    if len({(state.call, state.kind, state.ended) for state in states}) == 1:
        return None
    at = [_described(state) for state in states]
    return _apart("the ranks wait for each other for ever", at)


def _described(state: State) -> str:
    if state.ended:
        return f"has finished after step {state.steps}"
    return described(state.kind, state.steps, state.place)


def _apart(what: str, at: Sequence[str]) -> RuntimeFault:
    return RuntimeFault(
        "SW0785",
        what,
        why="; ".join(f"rank {rank} {where}" for rank, where in enumerate(at)),
        fix="let every rank make the same calls in the same order",
    )
