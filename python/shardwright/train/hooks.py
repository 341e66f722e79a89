"""What a run calls: a class of one's own, with any of these methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import Training


class Hook:
    """All ranks call each method at the same place. It need not be a base class."""

    def begin(self, training: Training) -> None:
        """Once model, optimizer and data are there, and a checkpoint is loaded."""

    def batch(self, training: Training, batch: Any) -> Any:
        """Before a step: what is returned takes the batch's place, unless it is None."""

    def step(self, training: Training, measured: dict[str, Any]) -> None:
        """After each step, with what loggers get. What is added here they get, too."""

    def evaluated(self, training: Training, measured: dict[str, Any]) -> None:
        """After an evaluation."""

    def saved(self, training: Training, folder: str) -> None:
        """After a checkpoint was written, or was begun where it is written behind."""

    def end(self, training: Training) -> None:
        """At the end of the run."""


class Hooks:
    """All of a run, in their order."""

    def __init__(self, hooks: list[Any]):
        self._hooks = hooks

    def add(self, hook: Any) -> None:
        self._hooks.append(hook)

    def call(self, name: str, *given: Any) -> None:
        for hook in self._hooks:
            method = getattr(hook, name, None)
            if method is not None:
                method(*given)

    def batch(self, training: Training, batch: Any) -> Any:
        for hook in self._hooks:
            method = getattr(hook, "batch", None)
            other = None if method is None else method(training, batch)
            batch = batch if other is None else other
        return batch
