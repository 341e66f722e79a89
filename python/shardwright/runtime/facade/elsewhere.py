"""What stands on a rank for a parameter of which it holds nothing: it says what it is, and can be frozen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import RuntimeFault
from ..programs.program import TensorInfo
from .passing import HARMLESS, name_of

_ASKED = HARMLESS | {"shape", "size", "numel", "nelement"}


class Elsewhere(nn.Parameter):
    """With the single device's shape and no values; not among a module's `parameters()`."""

    called: str

    @staticmethod
    def standing_for(tensor: TensorInfo) -> Elsewhere:
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        stand_in = torch.Tensor._make_subclass(Elsewhere, empty, tensor.trainable)
        stand_in.called = tensor.names[0]
        return stand_in

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := name_of(func)) not in _ASKED:
            raise _refusal(_first(args, kwargs or {}), name)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<parameter {self.called!r}, which other ranks hold>"


def _first(args: Any, kwargs: Any) -> Elsewhere:
    flat = [*args, *kwargs.values()]
    flat += [inner for value in flat if isinstance(value, (list, tuple)) for inner in value]
    return next(value for value in flat if isinstance(value, Elsewhere))


def _refusal(parameter: Elsewhere, use: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0820",
        f"the parameter {parameter.called!r} is on other ranks, and `{use}` asks for its values",
        why="the plan gives this rank no shard of it",
        fix="`model.full_state_dict()`, on all ranks, has its values; here it has a shape, a dtype and"
        " `requires_grad`",
    )


def is_elsewhere(value: Tensor) -> bool:
    return isinstance(value, Elsewhere)
