"""The loop: programs of a seed, several plans for each; what is found, and what was met."""

from __future__ import annotations

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from . import counting, crossing, making
from .known import is_known
from .pairs import Finding, Found, Refused, Unstable, Way, compare, plan_of, prepare
from .programs import Program
from .steps import PIPELINES, can_step

PLANS = 24
"""Plans for each program: capture takes longer than a pair."""
NAMED = [
    ("data", 2),
    ("data", 3),
    ("megatron", 2),
    ("replicate", 2),
    ("data:2 x megatron:2", 4),
    ("coshard:2", 1),
    ("data", 4),
    ("megatron", 3),
    ("coshard:3", 1),
    ("data:2 x coshard:2", 2),
    ("megatron:2 x coshard:2", 2),
    ("megatron:2 x replicate:2", 4),
]


# So many pairs have met what goes together, too.
LONG = 20_000


@dataclass
class Tally:
    """What a session has done: adds up."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.refused.update(other.refused)
        self.known.update(other.known)
        self.findings += other.findings

    def missing(self) -> list[str]:
        never = [name for name in counting.wanted() if not self.counts[name]]
        if self.counts["pairs"] < LONG:
            return never
        return never + crossing.missing(self.counts)


def ways(program: Program, plans: int = PLANS) -> list[Way]:
    """The plans of a program; the first are named, the others random."""
    rng = random.Random(f"plans of {program.seed}")
    named = rng.sample(NAMED, max(plans // 4, 1))
    drawn = []
    for name, devices in named:
        local = rng.random() < 0.35 and name.startswith("data")
        drawn.append(Way(name, devices, _asked(rng), "local" if local else "global"))
    steps_are_taken = can_step(program)
    if steps_are_taken:
        drawn += [Way(*rng.choice(PIPELINES), batches=rng.choice([1, 2, 3, 4])) for _ in range(plans // 4)]
    for _ in range(plans - len(drawn)):
        kind = rng.choice(["random", "random", "shares"])
        name, devices = f"{kind}:{rng.randrange(10**6)}", rng.choice([1, 2, 2, 3, 3, 4])
        batches = rng.choice([0, 0, 1, 2, 3]) if steps_are_taken else 0
        drawn.append(Way(name, devices, "loss" if batches else _asked(rng), batches=batches))
    return drawn


def _asked(rng: random.Random) -> str:
    return "all" if rng.random() < 0.35 else "loss"


def numbers(first: int = 0, every: int = 1) -> Iterator[int]:
    number = first
    while True:
        yield number
        number += every


def one(
    seed: int, number: int, plans: int = PLANS, tell: Callable[[str], object] = lambda text: None
) -> Tally:
    """One program under its plans. `tell` hears what is about to be done, in case it ends the process."""
    program = making.program(seed, number)
    tell(f"{number}")
    return tried(program, ways(program, plans), tell)


def tried(program: Program, plans: list[Way], tell: Callable[[str], object] = lambda text: None) -> Tally:
    tally = Tally()
    try:
        subject = prepare(program)
    except Unstable:
        tally.counts["unstable programs"] += 1
        return tally
    except Refused as refusal:
        tally.counts["programs refused by capture"] += 1
        tally.refused[str(refusal)] += 1
        return tally
    except Found as failure:
        _note(tally, failure.finding)
        return tally
    tally.counts.update(counting.of_subject(subject))
    tally.counts["programs"] += 1
    for way in plans:
        tell(f"{program.seed.split('.')[1]} {way}")
        try:
            compiled = compare(subject, way)
        except Unstable:
            tally.counts["unstable pairs"] += 1
            continue
        except Refused as refusal:
            tally.counts["named plans that do not fit"] += 1
            tally.refused[refusal.code] += 1
            continue
        except Found as failure:
            tally.counts["pairs"] += 1
            _note(tally, failure.finding)
            continue
        tally.counts["pairs"] += 1
        tally.counts["pairs, equal"] += 1
        tally.counts.update(counting.of_pair(plan_of(subject.graph, way), subject.graph, way, compiled))
    return tally


def _note(tally: Tally, finding: Finding) -> None:
    name = is_known(finding)
    if name is None:
        tally.findings.append(finding)
    else:
        tally.known[name] += 1


def run(seed: int, *, pairs: int = 0, seconds: float = 0.0, plans: int = PLANS) -> Tally:
    """In this process, until so many pairs or seconds."""
    tally, begin = Tally(), time.monotonic()
    for number in numbers():
        tally.add(one(seed, number, plans))
        if (pairs and tally.counts["pairs"] >= pairs) or (seconds and time.monotonic() - begin >= seconds):
            return tally
    raise AssertionError


def describe(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()
