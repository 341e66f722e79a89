"""An operator that a dispatch mode has seen is called on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def called(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """What the operator gives. Zeros that are made only where they are read are made at once.

    PyTorch's backward passes such zeros on; below a mode the next operator reads memory that is not there.
    """
    if func is torch.ops.aten._efficientzerotensor.default:
        func = torch.ops.aten.zeros.default
    return func(*args, **(kwargs or {}))
