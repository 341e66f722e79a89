"""The states of all generators that code may draw from: PyTorch's, Python's and NumPy's."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import torch

# Ranks may be threads, and these states are of the process.
_ONE_AT_A_TIME = threading.Lock()


def states() -> Hashable:
    """Of the generators that are no device's."""
    return random.getstate(), _numpy_state()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """All of them start from a seed, and are as before afterwards."""
    devices = [device] if device.type == "cuda" else []
    numpy = sys.modules.get("numpy")
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices):
        python, other = random.getstate(), numpy and numpy.random.get_state()
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy:
                numpy.random.set_state(other)


def _numpy_state() -> Hashable:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    kind, numbers, *rest = numpy.random.get_state()
    return kind, numbers.tobytes(), *rest
