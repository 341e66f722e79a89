"""Custom autograd Functions: one operator each, with the backward that they have.

PyTorch asks a Function's class for its `forward` when it is applied, however that came about. While a model
is traced it is given one that puts the operator into the graph; the operator applies the Function itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from ... import as_python
from ...errors import CaptureError
from .. import lines
from ..autocast import ambient
from ..chance import Recording
from .learning import learning, may_learn, which_learn

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
        found = type.__getattribute__(kind, name)
        module = str(type.__getattribute__(kind, "__module__"))
        if name not in ("_backward_cls", "forward") or module.startswith(_HARMLESS) or as_python.is_inside():
            return found
        if name == "_backward_cls":
            self._around[:] = [torch.is_grad_enabled()]
        elif self._around:
            return partial(self._forward, kind)
        return found

    def _forward(self, kind: Any, *args: Any) -> Any:
        """In the place of a Function's forward."""
        try:
            # With a `setup_context` of its own, forward is not given the context.
            setup = type.__getattribute__(kind, "setup_context")
            args = args[1:] if setup is torch.autograd.Function.setup_context else args
            name = as_python.name_of(kind)
            if name is None:
                self._refuse(_not_found(kind))
            if ambient():
                self._refuse(_refusal(kind, "it is applied under autocast, and a graph has explicit casts"))
            call, tensors = as_python.written(args, {})
            return self._called(kind, str(name), call, tensors)
        except as_python.NotPlain as error:
            self._refuse(_not_plain(kind, str(error)))
        finally:
            self._around.clear()

    def _called(self, kind: Any, name: str, call: str, tensors: list[Tensor]) -> Any:
        tried = _try(kind, call, tensors)
        if tried.in_place:
            self._refuse(_in_place(kind))
        if tried.draws:
            self._refuse(_refusal(kind, "it draws random numbers, and ranks would draw different ones"))
        results = torch.ops.shardwright.function(name, learning(tensors, tried.inputs), call)
        return _like(tried.result, iter(learning(results, tried.outputs)))


@dataclass(frozen=True)
class _Tried:
    """What a Function does with tensors such as these."""

    result: Any
    in_place: bool
    """Whether it changes one that it is given."""
    draws: bool
    """Whether random numbers are drawn, forward or backward."""
    inputs: list[bool]
    """Which of them get a gradient."""
    outputs: list[bool]
    """Which of its tensors have one."""


def _try(kind: Any, call: str, tensors: list[Tensor]) -> _Tried:
    with (
        disable_proxy_modes_tracing(),
        torch._C.DisableTorchFunction(),
        torch.enable_grad(),
        as_python.inside(),
        Recording() as recording,
    ):
        given = [tensor.detach().requires_grad_(may_learn(tensor)) for tensor in tensors]
        # What learns must not be changed in place.
        copies = [tensor.clone() for tensor in given]
        result = kind.apply(*as_python.read(call, copies)[0])
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        in_place = any(copy._version for copy in copies)
        learns = which_learn(given, outputs)
        return _Tried(result, in_place, bool(recording.draws), learns, [x.requires_grad for x in outputs])


def _like(result: Any, tensors: Iterator[Tensor]) -> Any:
    """Other tensors in the places of a result's own."""
    if isinstance(result, (tuple, list)):
        return tuple(_like(leaf, tensors) for leaf in result)
    if result is None:
        return None
    if isinstance(result, Tensor):
        return next(tensors)
    raise as_python.NotPlain(f"a `{type(result).__name__}`, which it returns")


def _refusal(kind: type, why: str) -> CaptureError:
    return CaptureError(
        "SW0103",
        f"the model calls `{kind.__name__}.apply`, which cannot be an operator",
        place=lines.with_source(lines.trace_of_caller(sys._getframe(1))),
        why=why,
        fix=_FIX,
    )


_FIX = (
    "define it at the top of a module, and let it take and give tensors and plain values;"
    " or put the call into a module of its own, which then runs as it is"
)


def _not_found(kind: type) -> CaptureError:
    return _refusal(kind, f"other ranks do not find `{kind.__module__}.{kind.__qualname__}` by its name")


def _not_plain(kind: type, what: str) -> CaptureError:
    return _refusal(kind, f"{what} cannot be written into a graph")


def _in_place(kind: type) -> CaptureError:
    return _refusal(kind, "it changes a tensor that it is given, and the graph knows no such change")
