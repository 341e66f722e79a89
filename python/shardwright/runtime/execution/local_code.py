"""Local code as `torch.compile` compiles it.

Each function of a program that is called between communications is compiled by itself, at its first call.
Layers that share a function share what is compiled: to `torch.compile` the tensors below `p` are arguments as
all others are. A function that cannot be compiled runs as it was emitted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._functorch import config

from ...report.progress import Progress

Function = Callable[..., Any]

# As much of what a compiler says about why it cannot as a person reads.
_LINES, _WIDTH = 2, 300
_ADVICE = ("Set TORCH", "For even more developer context")


class LocalCode:
    """The functions of one program. `backend` is one of `torch.compile`'s."""

    def __init__(self, progress: Progress, backend: str = "inductor"):
        self._progress, self._backend = progress, backend
        # Whether backwards have two halves: what is saved is not for the first of them to write to.
        self.splits = False
        self._made: dict[Function, Function] = {}
        self._begun: set[tuple[Function, bool]] = set()
        # Why, by the function's name.
        self.as_emitted: dict[str, str] = {}

    def another(self) -> LocalCode:
        """For another program."""
        return LocalCode(self._progress, self._backend)

    def compiled(self, function: Function) -> Function:
        if function not in self._made:
            self._made[function] = self._compiled(function)
        return self._made[function]

    def _compiled(self, function: Function) -> Function:
        compiled: Function = torch.compile(function, fullgraph=True, dynamic=False, backend=self._backend)

        def call(*args: Any) -> Any:
            if function.__name__ in self.as_emitted:
                return function(*args)
            try:
                return self._or_named(function, compiled, _without_numbers(args))
            except Exception as error:
                why = _reason(error)
            # If it fails as well, this is the model's own error, and says no more of the compiler.
            results = function(*args)
            self._give_up(function, why)
            return results

        return call

    def _or_named(self, function: Function, compiled: Function, args: Sequence[Any]) -> Any:
        """With gradients and without them are two compilations."""
        kind = function, torch.is_grad_enabled()
        if kind in self._begun:
            return compiled(*args)
        self._begun.add(kind)
        with self._progress.phases("torch.compile") as phases:
            phases.begin(function.__name__)
            # Else what cannot be compiled of the backward is known only there, where it is too late.
            with config.patch(force_non_lazy_backward_lowering=True, donated_buffer=not self.splits):
                results = compiled(*args)
        name = f"`{function.__name__}`{'' if kind[1] else ' without gradients'}"
        self._progress.say(f"shardwright: {name} compiled by torch.compile in {phases.total:.1f} s")
        return results

    def first_half(self) -> AbstractContextManager[Any]:
        """Around one, which may be told from a whole backward only so."""
        patched: AbstractContextManager[Any] = config.patch(donated_buffer=False)
        return patched

    def _give_up(self, function: Function, why: str) -> None:
        self.as_emitted[function.__name__] = why
        code = function.__code__
        what = f"`{function.__name__}` ({code.co_filename}:{code.co_firstlineno}) cannot be compiled"
        warnings.warn(f"{what}, and runs as it was emitted: {why}", stacklevel=3)


def _without_numbers(args: Sequence[Any]) -> list[Any]:
    """A number would be a part of the code: of each random operator another one."""
    return [torch.tensor(x, device="cpu") if type(x) is int else x for x in args]


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(_ADVICE)]
    return f"{type(error).__name__}: {' '.join(lines[:_LINES])}"[:_WIDTH]
