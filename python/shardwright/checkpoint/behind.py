"""Saving while training goes on: what is saved is copied to the host, and a thread writes it.

Each rank's thread leaves a note of what it has written. Rank 0's looks for all of them, and then makes the
new checkpoint the one that is there; a note of its own says how that ended.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import RuntimeFault
from ..runtime.agreement.together import all_of, tried
from ..runtime.communication.comm import Comm
from .folder import Chunk, Value, Written, commit, write

# Seconds between two looks for a note.
PAUSE = 0.02
# Seconds that rank 0 waits for the others when it has written.
PATIENCE = 1800.0
END = "end"


class Saving:
    """A checkpoint that is being written behind the training. Until it is complete the folder holds the one
    that was there before."""

    def __init__(self, comm: Comm, path: Path, key: str):
        self.path = path
        self._comm, self._key = comm, key
        self._settled = False

    def done(self) -> bool:
        """Whether it has ended, well or not; this waits for nothing."""
        return self._settled or self._note(END) is not None

    def wait(self) -> Path:
        """Until it is complete; raises what went wrong, on any rank."""
        while not self._settled:
            if (ended := self._note(END)) is not None:
                self._settled = True
                all_of([pickle.loads(ended)])
            else:
                time.sleep(PAUSE)
        return self.path

    def _note(self, rank: Any) -> bytes | None:
        return self._comm.look(f"{self._key}/{rank}")

    def _leave(self, rank: Any, result: Any) -> None:
        self._comm.leave(f"{self._key}/{rank}", pickle.dumps(result))

    def run(self, number: int, items: Sequence[Value | Chunk], copied: torch.cuda.Event | None) -> None:
        """The thread's work."""

        def written() -> Written:
            if copied is not None:
                copied.synchronize()
            return write(self.path, self._comm.rank, number, items)

        self._leave(self._comm.rank, tried(self._comm.rank, written))
        if self._comm.leads:
            self._leave(END, tried(0, lambda: commit(self.path, all_of(self._all()))))

    def _all(self) -> list[Any]:
        """What the ranks have written, or what went wrong."""
        until = time.monotonic() + PATIENCE
        results: list[Any] = []
        while len(results) < self._comm.world:
            note = self._note(len(results))
            if note is not None:
                results.append(pickle.loads(note))
            elif time.monotonic() > until:
                raise RuntimeFault(
                    "SW0741",
                    f"the checkpoint in {self.path} is not complete",
                    why=f"rank {len(results)} has written nothing for {PATIENCE / 60:.0f} minutes",
                    fix="look at what that rank does; what was there is as it was",
                )
            else:
                time.sleep(PAUSE)
        return results


def begin(comm: Comm, path: Path, key: str, number: int, items: Sequence[Value | Chunk]) -> Saving:
    """`items` are `copies`, of which those of a GPU may still be on their way."""
    copied = None
    if comm.device.type == "cuda":
        copied = torch.cuda.Event()
        copied.record()
    # The process may go to another folder meanwhile.
    saving = Saving(comm, path.absolute(), key)
    # The process does not end before its threads have.
    threading.Thread(target=saving.run, args=(number, items, copied), name="saving").start()
    _under_way.setdefault(comm.identity, []).append(saving)
    return saving


def settle(comm: Comm) -> None:
    """Waits for what this rank still saves; raises what went wrong."""
    for saving in _under_way.pop(comm.identity, []):
        saving.wait()


def copies(items: Sequence[Value | Chunk]) -> list[Value | Chunk]:
    """On the host, before anything changes; the host waits for no copy of a GPU's memory."""
    return [replace(item, held=_copied(item)) for item in items]


def _copied(item: Value | Chunk) -> Any:
    return item.packed() if isinstance(item, Value) else _on_host(item.tensor())


_under_way: dict[Hashable, list[Saving]] = {}


def _on_host(x: Tensor) -> Tensor:
    if x.device.type == "cpu":
        return x.clone()
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
