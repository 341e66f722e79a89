"""What is measured of a step, and what was predicted of it."""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..report.memory import OPTIMIZER
from ..report.recording import expected_of
from ..runtime import ParallelModule
from ..start.auto_plan import cluster_of


class Measuring:
    """Of one model. What only the description of a cluster tells is left out without one."""

    def __init__(self, model: ParallelModule, cluster: str | None, batches: int):
        self._device = model.comm.device
        expected = _expected(model, cluster, batches)
        self._predicted = expected.get("step_seconds")
        # Of the devices' peak, at which they would take so many seconds for the model's operations.
        peak = expected.get("operations_a_second")
        self._at_peak = expected["operations"] / peak if peak else None

    def of_step(self, seconds: float, tokens: int) -> dict[str, Any]:
        """A step that took so long, on all devices together."""
        utilisation = {} if self._at_peak is None else {"mfu": self._at_peak / seconds}
        return {
            "seconds": seconds,
            "predicted_seconds": self._predicted,
            **utilisation,
            "tokens_per_second": tokens / seconds,
            "memory": memory_used(self._device),
        }


def _expected(model: ParallelModule, cluster: str | None, batches: int) -> dict[str, Any]:
    if cluster is None or not model.program.graph:
        return {}
    captured = model.variants.first.captured
    return expected_of(model.program, captured, cluster_of(cluster), batches, OPTIMIZER)


def memory_used(device: torch.device) -> int:
    """The most so far: of the device, or of the process where that is the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
