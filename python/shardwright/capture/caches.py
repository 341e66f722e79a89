"""Caches of keys and values, which models of Transformers return for a generation step by step.

A forward by itself neither needs nor reads one, and an object that grows from call to call is no
result of a program. So a config that asks for one by default is captured without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_FIELD = "use_cache"


@contextmanager
def without_caches(module: nn.Module) -> Iterator[None]:
    configs = _asking(module)
    try:
        for config in configs:
            setattr(config, _FIELD, False)
        yield
    finally:
        for config in configs:
            setattr(config, _FIELD, True)


def notes(module: nn.Module) -> list[str]:
    if not _asking(module):
        return []
    return [f"the cache that `{_FIELD}` asks for is no result of a program: it is None there"]


def _asking(module: nn.Module) -> list[Any]:
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "config", None))}
    return [config for config in configs.values() if getattr(config, _FIELD, None) is True]
