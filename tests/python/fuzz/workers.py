"""Sessions in processes of their own: one that dies or hangs is a finding, and the others go on."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cores

from . import making, session, shrinking
from .pairs import Finding
from .session import Tally

SILENCE = 240.0
"""Seconds in which a worker says nothing before it is taken to hang."""


class Worker:
    """A process that works through every n-th program and says what it is at."""

    def __init__(
        self, seed: int, first: int, every: int, plans: int, shrink: float, say: Callable[..., object]
    ):
        self.seed, self.every, self.plans, self.shrink, self.say = seed, every, plans, shrink, say
        self.next = first
        self.at = ""
        self.heard = time.monotonic()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _path()}
        command = [
            sys.executable,
            "-m",
            "fuzz.workers",
            *map(str, (self.seed, self.next, self.every, self.plans, self.shrink)),
        ]
        self.heard = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=Path(__file__).parents[1],
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        while True:
            try:
                message = pickle.load(process.stdout)
            except Exception:
                break
            self.heard = time.monotonic()
            if isinstance(message, str):
                self.at = message
            else:
                self.next = message[0] + self.every
                self.say(self, message[1])
        process.wait()
        if process is self.process:
            self.say(self, process.returncode)

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def died(self, how: str) -> Finding:
        """What it was at when it ended; the next program is another's."""
        program = making.program(self.seed, self.next)
        self.next += self.every
        return Finding("process", how, f"a worker {how} at {self.at}", program)


def run(
    seed: int,
    *,
    jobs: int,
    minutes: float,
    pairs: int,
    plans: int,
    shrink: float,
    tell: Callable[[Tally, Tally], object],
) -> Tally:
    """Until the minutes are over or so many pairs are done; `tell` hears each program's tally and the sum."""
    said: queue.Queue[tuple[Worker, Any]] = queue.Queue()
    workers = [Worker(seed, at, jobs, plans, shrink, lambda w, x: said.put((w, x))) for at in range(jobs)]
    end = time.monotonic() + minutes * 60
    tally = Tally()
    for worker in workers:
        worker.start()
    try:
        while time.monotonic() < end and not (pairs and tally.counts["pairs"] >= pairs):
            for worker, heard in _heard(said, workers):
                part = heard if isinstance(heard, Tally) else _of_death(worker, heard)
                tally.add(part)
                tell(part, tally)
    finally:
        for worker in workers:
            worker.stop()
    return tally


def _heard(said: queue.Queue[tuple[Worker, Any]], workers: list[Worker]) -> list[tuple[Worker, Any]]:
    try:
        return [said.get(timeout=1.0)]
    except queue.Empty:
        return [(w, None) for w in workers if time.monotonic() - w.heard > SILENCE]


def _of_death(worker: Worker, code: int | None) -> Tally:
    worker.stop()
    tally = Tally(findings=[worker.died("hangs" if code is None else f"ended with {code}")])
    worker.start()
    return tally


def _path() -> str:
    here = str(Path(__file__).parents[1])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])


def main() -> None:
    """One worker: what it is at and its tallies, pickled, on what was its standard output."""
    import torch

    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    seed, first, every, plans = map(int, sys.argv[1:5])
    shrink = float(sys.argv[5])
    cores.keep_to_one(first % every)
    seen: set[str] = set()

    def say(message: Any) -> None:
        pickle.dump(message, out)
        out.flush()

    for number in session.numbers(first, every):
        tally = session.one(seed, number, plans, say)
        for at, finding in enumerate(tally.findings):
            if finding.coarse_key not in seen and shrink:
                seen.add(finding.coarse_key)
                say(f"{number}, shrinking")
                tally.findings[at] = shrinking.shrunk(finding, shrink)
        say((number, tally))


if __name__ == "__main__":
    main()
