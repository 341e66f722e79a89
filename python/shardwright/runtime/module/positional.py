"""Where nobody has captured the model: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...precision import Precision


class Positional:
    """Tensors in, tensors out."""

    structure: Hashable = None
    precision: Precision | None = None
    kept: Mapping[str, torch.dtype] = {}
    device: str | None = None
    fixed: Mapping[str, Any] = {}
    for_backward: bool | None = None
    known_names: Sequence[str] = ()

    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[Tensor]]:
        return None, self.flatten(args, kwargs)

    def is_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        return True

    def tensor_names(self, structure: Hashable) -> list[str]:
        return []

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        return [*args, *kwargs.values()]

    def unflatten(self, outputs: Sequence[Tensor | None]) -> Any:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def output_names(self) -> list[str]:
        return []
