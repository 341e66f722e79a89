"""Whose call is executing: random operators ask for its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from torch.autograd.graph import GradientEdge

from ....as_python import running
from ....errors import RuntimeFault
from .state import State

_current: ContextVar[State] = ContextVar("shardwright_run")


def current_run() -> State:
    """The run whose `call` is executing, backward included."""
    run = _current.get(None)
    if run is None:
        raise RuntimeFault("SW0711", "a random operator is called outside a program")
    return run


class Executing:
    """While code of a run is called: a `function`, or its backward from some edges of its graph. Entered at
    each call, so it is no generator."""

    __slots__ = ("_direction", "_modules", "_run", "_token")

    def __init__(
        self,
        run: State,
        direction: str,
        number: int,
        function: Callable[..., Any] | None = None,
        edges: Sequence[GradientEdge] = (),
    ):
        self._run, self._direction, self._modules = run, direction, running(run._modules)
        if run.work is not None:
            run.work.begin(direction, run.batch, number, function, edges)

    def __enter__(self) -> None:
        self._token = _current.set(self._run)
        self._modules.__enter__()

    def __exit__(self, *failed: object) -> None:
        if self._run.work is not None:
            self._run.work.end(self._direction)
        self._modules.__exit__()
        _current.reset(self._token)
