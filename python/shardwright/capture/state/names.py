"""The names of a module's state, and which of them are one tensor."""

from __future__ import annotations

import keyword
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from ...errors import CaptureError
from .memory import identity


@dataclass
class Names:
    """The state dict's names: groups of tied ones under the first."""

    params: dict[str, list[str]]
    buffers: dict[str, list[str]]
    persistent: set[str]

    @staticmethod
    def from_module(module: nn.Module) -> Names:
        _refuse_odd_names(module)
        params = _groups(module.named_parameters(remove_duplicate=False))
        buffers = _groups(module.named_buffers(remove_duplicate=False))
        return Names(params, buffers, _persistent(module))

    def canonical(self, name: str) -> str:
        return self._canonical[name]

    @cached_property
    def _canonical(self) -> dict[str, str]:
        both = (*self.params.values(), *self.buffers.values())
        return {name: group[0] for group in both for name in group}


def _refuse_odd_names(module: nn.Module) -> None:
    for part in module.modules():
        for name in (*part._modules, *part._parameters, *part._buffers):
            if keyword.iskeyword(name) or not is_safe(name):
                raise odd_name("a part of the model", name)


def is_safe(name: str) -> bool:
    """torch.export writes names into code that it runs, and does not escape them."""
    return name.isprintable() and not set(name) & {'"', "\\"}


def odd_name(what: str, name: str) -> CaptureError:
    return CaptureError(
        "SW0120",
        f"{what} has the name {name!a}",
        why="torch.export writes names into code that it runs, and this one would be taken apart",
        fix="rename it: letters, digits, underscores and spaces are safe, Python's keywords are not",
    )


def _groups(named: Any) -> dict[str, list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for name, tensor in named:
        groups.setdefault(identity(tensor), []).append(name)
    return {group[0]: group for group in groups.values()}


def _persistent(module: nn.Module) -> set[str]:
    seen = set()
    for prefix, part in module.named_modules(remove_duplicate=False):
        for name in part._buffers:
            if name not in part._non_persistent_buffers_set:
                seen.add(f"{prefix}.{name}" if prefix else name)
    return seen
