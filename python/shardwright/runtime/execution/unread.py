"""What stands for a gathered parameter in backward, once its memory has been given up.

The second half of a backward reads nothing that is gathered, and still is handed all that autograd saved
for an operator. What it is handed here has no memory that could be read: whatever computes with it is told
so, where it would have read what is not there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import RuntimeFault


class Unread(Tensor):
    """Lies as a tensor that is not there."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, x: Tensor) -> Unread:
        made: Unread = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, x.size(), strides=x.stride(), dtype=x.dtype, device=x.device
        )
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<a parameter that is not gathered, {tuple(self.shape)}, {self.dtype}>"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Autograd makes a tensor of its own of what it is handed.
        if func is torch.ops.aten.detach.default:
            return cls(args[0])
        raise RuntimeFault(
            "SW0776",
            f"`{func}` reads a parameter that is not gathered",
            why="it is sharded between ranks or lives on the host, and its memory here is released",
            fix="report this as a bug, with the model",
        )


def nan_like(x: Tensor) -> Tensor:
    """For an operator that is handed all operands, and reads of this one only how it lies: if it read more,
    gradients would be NaN."""
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device).fill_(torch.nan)
