"""What operators really give, compared once with what the graph says, before other ranks or steps rely on it.

A message of other bytes than its receivers expect would end as garbage, or never; a buffer of another dtype
would be another one from then on.
"""

from __future__ import annotations

import sys
from types import FrameType

import torch
from torch import Tensor

from ...errors import RuntimeFault
from ..programs.program import TensorInfo
from ..programs.regions import Region, local_factors, shape_of


def require_kind(x: Tensor, tensor: TensorInfo, region: Region, dtype: torch.dtype, file: str) -> None:
    """`x` is a part of the tensor in the code of a role, whose file is named for the message."""
    shape = shape_of(local_factors(region, tensor.factors))
    if (tuple(x.shape), x.dtype) == (tuple(shape), dtype):
        return
    name = tensor.names[0] if tensor.names else f"tensor {tensor.id}"
    raise RuntimeFault(
        "SW0834",
        f"an operator gives {name} as {tuple(x.shape)} of {x.dtype},"
        f" the graph says {tuple(shape)} of {dtype}",
        place=_line_of(file),
        why="on this device or with these values, the operator does something else than in the capture",
        fix="please report it with the model; a cast to the dtype that the graph says, right behind the"
        " operator, makes it run",
    )


def _line_of(file: str) -> str | None:
    """The line of emitted code that is executed; the model's own line stands beside it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(file):
        frame = frame.f_back
    return None if frame is None else f"{file}:{frame.f_lineno}"
