"""Custom autograd Functions: one operator each, with the backward that they have.

PyTorch asks a Function's class for its `forward` when it is applied, however that came about. While a model
is traced it is given one that puts the operator into the graph; the operator applies the Function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch

from ... import as_python
from ...errors import CaptureError
from .calling import called, refusal

# PyTorch's own uses of Function under an operator that stays whole in the graph.
_HARMLESS = (
    "torch._library",
    "torch.utils.checkpoint",
    "torch._higher_order_ops",
    "torch._functorch",
    "torch._subclasses",
)


class Functions:
    """Makes operators of the Functions that a model applies, while it is traced."""

    def __init__(self, refuse: Callable[[CaptureError], NoReturn]) -> None:
        self._refuse = refuse
        # Whether gradients are on around each Function that is applied; inside of it they are off.
        self._around: list[bool] = []

    @property
    def grad_enabled(self) -> bool:
        return self._around[-1] if self._around else torch.is_grad_enabled()

    def watch(self, kind: type, name: str) -> Any:
        """The `__getattribute__` of classes of Functions."""
        attribute = type.__getattribute__(kind, name)
        module = str(type.__getattribute__(kind, "__module__"))
        if name not in ("_backward_cls", "forward") or module.startswith(_HARMLESS) or as_python.is_inside():
            return attribute
        if name == "_backward_cls":
            self._around[:] = [torch.is_grad_enabled()]
        elif self._around:
            return partial(self._forward, kind)
        return attribute

    def _forward(self, kind: Any, *args: Any) -> Any:
        """In the place of a Function's forward."""
        # With a `setup_context` of its own, forward is not given the context.
        setup = type.__getattribute__(kind, "setup_context")
        args = args[1:] if setup is torch.autograd.Function.setup_context else args
        try:
            name = as_python.name_of(kind)
            if name is None:
                self._cannot(
                    kind, f"other ranks do not find `{kind.__module__}.{kind.__qualname__}` by its name"
                )
            return called(str(name), kind, args, {}, partial(self._cannot, kind))
        finally:
            self._around.clear()

    def _cannot(self, kind: type, why: str) -> NoReturn:
        self._refuse(refusal(f"{kind.__name__}.apply", why))
