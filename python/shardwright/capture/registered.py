"""Registered tensors that a model reads by other ways than their names: from a list, or through memory
that an attribute shares with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


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
        args, kwargs = pytree.tree_map_only(Tensor, self._now, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _now(self, tensor: Tensor) -> Tensor:
        make = self._current.get(id(tensor))
        return tensor if make is None else make()
