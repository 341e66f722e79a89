"""What is known of one forward while it runs, and its backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ....as_python import Modules
from ...communication.local_work import LocalWork
from ...shards.shards import Leaves
from ..buckets import Bucket
from ..calls import Saved
from ..gathers import Scattering
from ..offload import KeptAway
from ..randomness import Masks
from ..split_backward import Left
from ..worker import Worker

Issued = tuple[str, int, int]
Ends = list[Callable[[], object]]


class State:
    def __init__(
        self,
        worker: Worker,
        masks: Masks,
        issued: list[Issued],
        *,
        modules: Modules | None = None,
        saving: bool,
        step: object = None,
        batch: int = 0,
        leaves: Leaves | None = None,
    ):
        """Runs of one `step` follow each other without a change of parameters. `leaves` are given of a step
        that is not the latest."""
        self.worker, self.comm = worker, worker.comm
        # The micro-batch, by which messages to other blocks are told apart.
        self.batch = batch
        self.masks, self._modules = masks, modules
        # What was really communicated: kind, grouping or table, and the bytes that this rank gave.
        self.issued = issued
        # What looks at the clock around calls, while the step is recorded.
        self.work: LocalWork | None = getattr(issued, "work", None)
        self._step = object() if step is None else step
        self.leaves = worker.shards.leaves(self._step) if leaves is None else leaves
        # By block: between the forwards of two, those of other micro-batches may write into buffers.
        self._leaves: dict[int, Leaves] = {}
        self._saving = saving
        # The tables that the code which is running has received.
        self._received: list[int] = []
        self._saved: dict[int, Saved] = {}
        # Of calls whose gradients of leaves are yet to be computed.
        self._left: dict[int, Left | None] = {}
        # End messages that run while the second half of a backward computes.
        self._in_flight: Ends = []
        self._kept: dict[int, tuple[Tensor, ...] | KeptAway] = {}
        # The memory of what it reads and has anyway, what is gathered apart.
        self._stays: frozenset[int] | None = None
        self._inputs: Sequence[Tensor] = ()
        self._state = "new"
        self._buckets: list[Bucket] = []
        self._scatterings: list[Scattering] = []
        # Gradients of shards on their way to the host.
        self._handed: list[tuple[int, Tensor, Any]] = []
        self._reductions = 0
        # By block, the positions of the outputs that its forward gave.
        self._given: dict[int, list[int]] = {}
        self._versions: list[int] = []
        # The blocks whose backward has run.
        self._ended: set[int] = set()
        # What is gathered that each call reads.
        self._read: dict[int, frozenset[int]] = {}
        # What a profiler shows of calls, and of the code that ran last.
        self.spans: dict[str, str] = {}
        self.at = ""
