"""Whether such an operator runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DEPTH: ContextVar[int] = ContextVar("depth", default=0)


@contextmanager
def inside() -> Iterator[None]:
    token = _DEPTH.set(_DEPTH.get() + 1)
    try:
        yield
    finally:
        _DEPTH.reset(token)


def is_inside() -> bool:
    """Whether such an operator runs: what it calls is its own."""
    return _DEPTH.get() > 0
