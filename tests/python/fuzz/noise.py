"""Rounds every operator otherwise, to find results that depend on rounding: ties, signs of zero, steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.capture.dispatch import called

ROUNDED = (
    "add",
    "mul",
    "div",
    "sum",
    "mean",
    "mm",
    "bmm",
    "sub",
    "native",
    "var",
    "softmax",
    "conv",
    "pow",
    "exp",
    "log",
    "sin",
    "cos",
    "tan",
    "sigmoid",
    "sqrt",
    "rsqrt",
    "erf",
)


def Noise(size: float) -> AbstractContextManager[object]:  # noqa: N802
    return _Noise(size) if size else nullcontext()


class _Noise(TorchDispatchMode):
    def __init__(self, size: float):
        super().__init__()
        self.size = size
        self.generator = torch.Generator()
        self.generator.manual_seed(torch.initial_seed())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = called(func, args, kwargs)
        name = func._schema.name.removeprefix("aten::").lstrip("_")
        fresh = all(value.alias_info is None for value in func._schema.returns)
        if fresh and name.startswith(ROUNDED):
            for x in results if isinstance(results, (tuple, list)) else [results]:
                if isinstance(x, Tensor) and x.is_floating_point():
                    x.mul_(1 + self.size * torch.randn(x.shape, dtype=x.dtype, generator=self.generator))
        return results
