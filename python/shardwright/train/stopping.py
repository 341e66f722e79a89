"""A scheduler that wants its machines back: the run saves at the end of the step, and ends.

`SIGTERM` comes from Slurm, Kubernetes and torchrun, `SIGUSR1` from `sbatch --signal`. Some ranks may get it
sooner than others, or alone, so that all ask each other after each step.
"""

from __future__ import annotations

import signal
from types import FrameType

from ..runtime.communication.comm import Comm

# As `sysexits.h` calls it: a scheduler may start the run once more, and it goes on.
TEMPORARY_FAILURE = 75
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stopping:
    """Asked for by a signal, from `__enter__` on."""

    def __init__(self, comm: Comm):
        self._comm = comm
        self._asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stopping:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def is_asked(self) -> bool:
        """On any rank. All ranks call this."""
        return any(self._comm.tally([int(self._asked)], "the question whether to stop"))

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
