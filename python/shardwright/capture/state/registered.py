"""Registered tensors that a model reads by other ways than their names: from a list, or through memory
that an attribute shares with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

# What certainly holds no tensors.
_LEAVES = {type(None), bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.memory_format}


class Registered(TorchFunctionMode):
    """Gives operators the tensor that has the name now in the place of the one that once had it.

    While a model is traced, its tables hold stand-ins, and only these are followed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._current: dict[int, Callable[[], Tensor]] = {}
        self._alive: list[Tensor] = []

    def add(self, stand_in: Tensor, owner: nn.Module, name: str) -> None:
        self.derive(stand_in, lambda: getattr(owner, name))

    def derive(self, stand_in: Tensor, make: Callable[[], Tensor]) -> None:
        self._current[id(stand_in)] = make
        self._alive.append(stand_in)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not (self._are_current(args) and self._are_current(kwargs.values())):
            args, kwargs = pytree.tree_map_only(Tensor, self._now, (args, kwargs))
        return func(*args, **kwargs)

    def _are_current(self, values: Iterable[Any]) -> bool:
        """Whether it is certain that there is nothing to replace: asked at each read of a shape."""
        for value in values:
            kind = type(value)
            if kind in (list, tuple):
                if not self._are_current(value):
                    return False
            elif isinstance(value, Tensor):
                if self._now(value) is not value:
                    return False
            elif kind not in _LEAVES:
                return False
        return True

    def _now(self, tensor: Tensor) -> Tensor:
        make = self._current.get(id(tensor))
        return tensor if make is None else make()
