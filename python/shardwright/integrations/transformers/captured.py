"""The module that is captured: the user's model, with what the Trainer does around its forward.

It has the model's own class, names and parameters; its forward also casts as the Trainer's mixed precision
does, and gives the loss that the Trainer computes from the results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import nn

# Of the model, its arguments: the loss and the results.
Loss = Callable[[nn.Module, dict[str, Any]], tuple[Any, Any]]


def captured_as(
    model: nn.Module, *, autocast: torch.dtype | None, device: str, loss: Loss | None
) -> nn.Module:
    """The model itself, if nothing is done around its forward."""
    if autocast is None and loss is None:
        return model
    made = copy.copy(model)
    patched = made.__dict__.pop("forward", None)
    kind = type(model)

    def results(self: nn.Module, kwargs: dict[str, Any]) -> Any:
        call = patched if patched is not None else lambda **given: kind.forward(self, **given)
        if autocast is None:
            return call(**kwargs)

        def cast(**given: Any) -> Any:
            with torch.autocast(device, dtype=autocast):
                return call(**given)

        return convert_outputs_to_fp32(cast)(**kwargs)

    def forward(self: Any, **kwargs: Any) -> Any:
        if loss is None or self.__dict__.get("_inside"):
            return results(self, kwargs)
        self.__dict__["_inside"] = True
        try:
            result, outputs = loss(self, kwargs)
        finally:
            del self.__dict__["_inside"]
        return _with_loss(outputs, result)

    names = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made.__class__ = type(kind.__name__, (kind,), names)
    return made


def _with_loss(outputs: Any, loss: Any) -> Any:
    """As the model's own results have it: first."""
    if isinstance(outputs, Mapping):
        rest = {name: value for name, value in outputs.items() if name != "loss" and value is not None}
        return {"loss": loss, **rest} if loss is not None else rest
    listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return (loss, *listed) if loss is not None else tuple(listed)
