"""Models in processes of their own, forked off this one, each with limits of time and memory."""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import cores

from .results import Found, Key
from .trying import AGAIN

MEMORY = 12 << 30
"""Bytes that a process may take."""
WAITING = 12
"""So many times the seconds that a process may compute may pass: it may hang, or share its core."""


@dataclass
class Child:
    """What it says comes as lines of JSON; the last whole one is what is known of its model. No other has its
    place."""

    key: Key
    place: int
    pid: int
    pipe: int
    begin: float = field(default_factory=time.monotonic)
    text: bytes = b""
    ended: bool = False

    def hear(self) -> None:
        """A pipe that says nothing is at its end, and so is the process."""
        said = os.read(self.pipe, 1 << 16)
        self.text += said
        self.ended = not said

    def latest(self) -> Found:
        lines = [line for line in self.text.split(b"\n")[:-1] if line]
        package, name = self.key
        return json.loads(lines[-1]) if lines else {"package": package, "name": name, "state": "too slow"}


def run(
    keys: Sequence[Key],
    function: Callable[[str, str, Callable[[Found], object]], Found],
    workers: int,
    seconds: float,
    at_work: Callable[[Sequence[Key]], object] = lambda keys: None,
) -> Iterator[Found]:
    """What `function` gives for each, as they end. A child may compute for so many seconds. `at_work` is told
    who is, whenever another begins."""
    waiting, children = list(keys), list[Child]()
    try:
        while waiting or children:
            while waiting and len(children) < workers:
                place = min(set(range(workers)) - {child.place for child in children})
                children.append(_started(waiting.pop(0), place, function, seconds))
                at_work([child.key for child in children])
            for child in _ended(children, seconds):
                children.remove(child)
                yield _found_by(child, seconds)
    finally:
        for child in children:
            _end(child)


def _started(key: Key, place: int, function: Callable[..., Found], seconds: float) -> Child:
    pipe, out = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()
    pid = os.fork()
    if not pid:
        os.close(pipe)
        cores.keep_to_one(place)
        _work(key, function, seconds, out)
    os.close(out)
    return Child(key, place, pid, pipe)


def _work(key: Key, function: Callable[..., Found], seconds: float, out: int) -> None:
    """In the child, which never returns."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))

    def say(entry: Any) -> None:
        os.write(out, json.dumps(entry, default=str).encode() + b"\n")

    try:
        say(function(*key, say))
    except BaseException as error:
        package, name = key
        reason = f"{type(error).__name__}: {error}"[:300]
        say({"package": package, "name": name, "state": "died", "reason": reason})
    os._exit(0)


def _ended(children: Sequence[Child], seconds: float) -> list[Child]:
    """After at most a second; those that are over their time have ended, too."""
    by_pipe = {child.pipe: child for child in children}
    heard, _, _ = select.select(list(by_pipe), [], [], 1.0)
    for pipe in heard:
        by_pipe[pipe].hear()
    now = time.monotonic()
    return [child for child in children if child.ended or now - child.begin > WAITING * seconds]


def _found_by(child: Child, seconds: float) -> Found:
    code, entry = _end(child), child.latest()
    if code == 0:
        return entry
    slow = code == -signal.SIGXCPU or not child.ended
    why = f"{seconds:.0f} s were over" if slow else f"its process ended with {code}"
    if entry.get("phase") in AGAIN and "plans" in entry:
        lost = {"outcome": "fails", "reason": why}
        return entry | {"state": "tried", entry["phase"]: {"plans": {"data": lost}}}
    return entry | {"state": "too slow" if slow else "died", "reason": f"{why} in {entry.get('phase')}"}


def _end(child: Child) -> int:
    """Its exit code; one that goes on is ended."""
    if not child.ended:
        os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    os.close(child.pipe)
    return os.waitstatus_to_exitcode(status)
