"""What compiling says while it works: phases and seconds on stderr, a bar where it takes long."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm  # type: ignore[import-untyped]

PHASES = ("key", "capture", "lengths", "plan", "lower", "emit", "read back", "check", "keep")
# A bar is for what takes longer than this.
SOON = 1.0
_EVERY = 0.1
# Of a terminal that does not say how wide it is.
WIDTH = 80


def wanted(progress: bool | None) -> bool:
    """What a call asks for, else what `$SHARDWRIGHT_PROGRESS` says, else yes."""
    if progress is not None:
        return progress
    return os.environ.get("SHARDWRIGHT_PROGRESS", "").lower() not in ("off", "0", "no", "false")


def verbose(asked: bool = False) -> bool:
    """Whether a summary has what the compiler counted: a call asks, or `$SHARDWRIGHT_VERBOSE` says so."""
    return asked or os.environ.get("SHARDWRIGHT_VERBOSE", "").lower() not in ("", "off", "0", "no", "false")


class Phases:
    """The phases of one compilation and their seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.current = ""
        self._start = self._since = time.perf_counter()

    def begin(self, phase: str) -> None:
        now = time.perf_counter()
        if self.current:
            self.seconds[self.current] = self.seconds.get(self.current, 0.0) + now - self._since
        self.current, self._since = phase, now

    def end(self) -> None:
        self.begin("")

    @property
    def total(self) -> float:
        return time.perf_counter() - self._start


class Progress:
    """Says nothing unless it is wanted. Bars are for people: only where `stream` is a terminal."""

    def __init__(self, wanted: bool, stream: TextIO | None = None):
        self._wanted = wanted
        self._stream = stream

    def say(self, *lines: str) -> None:
        if self._wanted:
            stream = self._stream or sys.stderr
            stream.write("".join(f"{line}\n" for line in lines))
            stream.flush()

    @contextmanager
    def phases(self, title: str) -> Iterator[Phases]:
        phases = Phases()
        stream = self._stream or sys.stderr
        bar = _Bar(title, phases, stream) if self._wanted and stream.isatty() else None
        try:
            yield phases
        finally:
            phases.end()
            if bar is not None:
                bar.close()


class _Bar:
    """Drawn by a thread of its own, so that it moves while the compiler is at work."""

    def __init__(self, title: str, phases: Phases, stream: TextIO):
        self._title, self._phases, self._stream = title, phases, stream
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join()

    def _draw(self) -> None:
        if self._done.wait(SOON):
            return
        # In some containers a terminal has no width, and tqdm would draw nothing.
        width: dict[str, Any] = {"dynamic_ncols": True} if _columns(self._stream) else {"ncols": WIDTH}
        bar: Any = tqdm(
            total=len(PHASES), file=self._stream, leave=False, bar_format="{desc} |{bar}| {elapsed}", **width
        )
        bar.start_t -= SOON
        with bar:
            while not self._done.wait(_EVERY):
                phase = self._phases.current
                bar.n = PHASES.index(phase) if phase in PHASES else bar.n
                bar.set_description_str(f"shardwright: {self._title}: {phase}")


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0
