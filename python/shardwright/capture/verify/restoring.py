"""Forwards with values that write parameters, which afterwards are as they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..dispatch import called
from ..state.memory import identity


class Restoring(TorchDispatchMode):
    """Knows which parameters are written, and gives them their values back at its end."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self._own = dict(module.named_parameters())
        self._data = {name: parameter.detach() for name, parameter in self._own.items()}
        self._names: dict[int, list[str]] = {}
        for name, data in self._data.items():
            if data.layout is torch.strided:
                self._names.setdefault(_storage(data), []).append(name)
        self._before: dict[str, Tensor] = {}

    def written(self) -> dict[str, Tensor]:
        """The parameters that were written until now, by their first names, with a copy of their values."""
        written = {name: tensor for name, tensor in self._own.items() if self._is_written(name)}
        return {name: tensor.detach().clone() for name, tensor in written.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            self._save(func._schema.arguments, args, kwargs or {})
        return called(func, args, kwargs)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        with torch.no_grad():
            for name, tensor in self._own.items():
                if self._is_moved(name):
                    tensor.data = self._data[name]
            for name, value in self._before.items():
                self._data[name].copy_(value)

    def _save(self, arguments: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        for at, argument in enumerate(arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            for written in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(written, Tensor) and written.layout is torch.strided:
                    for name in self._names.get(_storage(written), ()):
                        if name not in self._before:
                            self._before[name] = self._data[name].clone()

    def _is_written(self, name: str) -> bool:
        return name in self._before or self._is_moved(name)

    def _is_moved(self, name: str) -> bool:
        """Whether it was given other data."""
        now, data = self._own[name].detach(), self._data[name]
        return now.layout is torch.strided and identity(now) != identity(data)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
