"""Who steps a model, and with which options, in words that the ranks compare before each call of it.

A scheduler that only one rank steps, say, would train parts of one parameter at different rates.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..agreement.alike import text_of
from ..programs.program import Program


class Stepping:
    """The optimizers over one model's shards, in the order in which they were met."""

    def __init__(self, program: Program) -> None:
        self._known: list[tuple[weakref.ref[Optimizer], bool]] = []
        # PyTorch's constructor makes none over no parameters, so some ranks may have none.
        self._everywhere = all(_has_parameters(program, role.entry) for role in program.roles)

    def add(self, optimizer: Optimizer, *, alike: bool) -> None:
        """`alike`: it has the same groups on all ranks."""
        if all(known() is not optimizer for known, _ in self._known):
            self._known.append((weakref.ref(optimizer), alike))

    def settings(self) -> tuple[str, ...]:
        self._known = [one for one in self._known if one[0]() is not None]
        return tuple(self._said())

    def _said(self) -> Iterator[str]:
        for known, alike in self._known:
            optimizer = known()
            if optimizer is None or not (alike or self._everywhere):
                continue
            name = type(optimizer).__name__
            if not alike:
                yield f"{name} is made with {_options(optimizer.defaults)}"
            for at, group in enumerate(optimizer.param_groups if alike else ()):
                yield f"{name} steps group {at} with {_options(group)}"


def _options(options: Mapping[str, Any]) -> str:
    """Nobody waits for a device to compare what is there."""
    return ", ".join(
        f"{name}={text_of(value)}"
        for name, value in options.items()
        if name not in ("params", "param_names")
        and not (isinstance(value, Tensor) and value.device.type != "cpu")
    )


def _has_parameters(program: Program, role: Mapping[str, Any]) -> bool:
    return any(program.tensors[number].kind == "param" for number, _ in role["shards"])
