"""How much it takes to run a graph beside its module, and how much of that is affordable where it would run.

A comparison is two forwards of each side with a backward: about eight forwards. It happens while nothing else
does, so it may take some tens of seconds and half of the memory that is free.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from ..._core import Graph
from ..state.memory import identity

# Operations of a forward with the model's own values: of a thread on the CPU, and on a GPU.
MOST_OPERATIONS = {"cpu": 2e11, "cuda": 3e13}
# Of a forward that is compared at each start from the cache: less than a second.
MOST_AT_A_START = 2e9
# Of the free memory: other processes start here, too.
_SHARE = 2
# Not all that a forward computes is in proportion to its rows.
_SPARE = 0.9
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Extent:
    """Of one forward of a graph."""

    operations: float
    bytes: int
    """Of what it computes, which a backward may need."""

    def fits(self, module: nn.Module, kind: str) -> bool:
        """Whether graph and module may be compared on a device of a kind."""
        return self.operations <= most_operations(kind) and self.needed(module, kind) <= room(kind)

    def has_room(self, kind: str) -> bool:
        """Whether what a forward computes has, whatever the module takes."""
        return self.bytes <= room(kind)

    def needed(self, module: nn.Module, kind: str) -> int:
        """What one side computes, and what any batch needs."""
        return self.bytes + _of_any_batch(module, kind)

    def share(self, module: nn.Module, kind: str) -> float:
        """Of a batch that does not fit, what does, with a little to spare."""
        memory = (room(kind) - _of_any_batch(module, kind)) / max(self.bytes, 1)
        return _SPARE * max(0.0, min(memory, most_operations(kind) / max(self.operations, 1.0)))


def _of_any_batch(module: nn.Module, kind: str) -> int:
    """The gradients of both sides; where the model lies elsewhere, a copy of it."""
    held = {identity(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    elsewhere = sum(t.nbytes for t in held.values() if t.device.type != kind)
    return elsewhere + 2 * sum(t.nbytes for t in held.values() if t.requires_grad)


def extent_of(text: str, as_python: Mapping[str, tuple[str, float]]) -> Extent:
    """What runs as it is, is known by its share of a forward's operations."""
    costs = [operator.cost for operator in Graph(text).operators]
    written = sum(cost.forward[1] + cost.kept[2] for cost in costs)
    counted = sum(cost.flops + _elements(cost.outputs) for cost in costs)
    share = min(sum(share for _, share in as_python.values()), 0.999)
    return Extent(counted / (1 - share), int(written / (1 - share)))


def _elements(outputs: list[tuple[str, list[int], str, bool] | None]) -> int:
    return sum(prod(output[1]) for output in outputs if output is not None)


def most_operations(kind: str) -> float:
    return MOST_OPERATIONS[kind] * (torch.get_num_threads() if kind == "cpu" else 1)


def room(kind: str) -> int:
    """The memory that a comparison may take."""
    if kind == "cuda":
        return int(torch.cuda.mem_get_info()[0]) // _SHARE
    return _available() // _SHARE


def _available() -> int:
    try:
        with open("/proc/meminfo") as file:
            available = _AVAILABLE.search(file.read())
        if available is not None:
            return int(available[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # another system
        return 2**33
