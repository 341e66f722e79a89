"""The states of this rank's random generators: PyTorch's, Python's, and NumPy's if it is loaded."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any

import torch

from ..runtime import ParallelModule


def random_streams(models: Iterable[ParallelModule]) -> dict[str, Any]:
    streams: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        streams["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
        streams["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(gauss)]
    streams["modules"] = [generator.get_state() for generator in _own(models)]
    return streams


def restore_streams(streams: dict[str, Any], models: Iterable[ParallelModule]) -> None:
    torch.set_rng_state(streams["torch"])
    random.setstate(streams["python"])
    if "cuda" in streams and torch.cuda.is_available():
        torch.cuda.set_rng_state(streams["cuda"])
    if "numpy" in streams:
        try:
            import numpy
        except ImportError:
            return
        name, keys, *rest = streams["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    for generator, state in zip(_own(models), streams.get("modules", []), strict=False):
        generator.set_state(state)


def _own(models: Iterable[ParallelModule]) -> list[torch.Generator]:
    """Generators that modules were given instead of PyTorch's own."""
    generators = [model.worker.generator for model in models]
    return [generator for generator in generators if generator is not torch.default_generator]
