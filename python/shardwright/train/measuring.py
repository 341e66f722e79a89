"""What is measured of a step, and what was predicted of it."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any

import torch

from ..errors import ShardwrightError
from ..report.recording import expected_of
from ..runtime import ParallelModule
from ..start.auto_plan import cluster_of


class Measuring:
    """Of one model on one cluster, which may not be known."""

    def __init__(self, model: ParallelModule, cluster: str | None, batches: int, optimizer: str):
        self._model, self._cluster = model, cluster
        self._batches, self._optimizer = batches, optimizer

    def of(self, seconds: float, tokens: int) -> dict[str, Any]:
        """A step that took so long, on all devices together."""
        return {
            "seconds": seconds,
            "predicted_seconds": self._predicted,
            "tokens_per_second": tokens / seconds,
            "memory": memory_used(self._model.comm.device),
        }

    @cached_property
    def _predicted(self) -> float | None:
        if self._cluster is None or not self._model.program.graph:
            return None
        program, captured = self._model.program, self._model.variants.first.captured
        try:
            cluster = cluster_of(self._cluster)
            manifest = expected_of(program, captured, cluster, self._batches, self._optimizer)
        except ShardwrightError:
            return None
        return manifest["step_seconds"]


def memory_used(device: torch.device) -> int:
    """The most so far: of the device, or of the process where that is the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
