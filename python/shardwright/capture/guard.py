"""What must not happen while a forward is traced, because the graph would silently lose it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest import mock

import torch
from torch.autograd.function import FunctionMeta
from torch.utils.checkpoint import CheckpointFunction

from ..errors import CaptureError
from . import lines
from .simplify import NO_GRAD

# PyTorch's own uses of Function under an operator that stays whole in the graph.
_HARMLESS = (
    "torch._library",
    "torch.utils.checkpoint",
    "torch._higher_order_ops",
    "torch._functorch",
    "torch._subclasses",
)


@contextmanager
def guarded() -> Iterator[None]:
    """Refuses custom Functions, backward passes and autocast in forward; notes lines on nodes.

    The first refusal is raised at the end too, in case the model's code swallowed it.
    """
    refused: list[CaptureError] = []
    watch = _watch_functions(refused)
    with (
        mock.patch.object(FunctionMeta, "__getattribute__", watch, create=True),
        plain_checkpoint(),
        _autocast_refused(refused),
        mock.patch.object(torch.autograd, "_engine_run_backward", _refuse_backward(refused)),
        mock.patch.object(torch.fx.Graph, "create_node", _with_notes(torch.fx.Graph.create_node)),
    ):
        try:
            yield
        except Exception:
            if refused:
                raise refused[0] from None
            raise
    if refused:
        raise refused[0]


def _watch_functions(refused: list[CaptureError]) -> Callable[[type, str], Any]:
    """Every ``apply``, also one that a model bound long before, asks its class for this name."""

    def watch(kind: type, name: str) -> Any:
        if name == "_backward_cls":
            module = str(type.__getattribute__(kind, "__module__"))
            if not module.startswith(_HARMLESS):
                trace = lines.trace_of_caller(sys._getframe(1))
                refused.append(_function_error(kind.__name__, trace))
                raise refused[-1]
        return type.__getattribute__(kind, name)

    return watch


def _function_error(name: str, trace: str) -> CaptureError:
    return CaptureError(
        "SW0103",
        f"the model calls `{name}.apply`, a custom torch.autograd.Function",
        place=lines.with_source(trace),
        why="capture would keep its forward and drop its backward, and the model would train wrongly",
        fix="write it with PyTorch's own operators, or make it a torch.library.custom_op with"
        " register_autograd",
    )


@contextmanager
def plain_checkpoint() -> Iterator[None]:
    """Reentrant checkpointing becomes a plain forward: what is recomputed is the plan's choice."""

    def apply(run_function: Any, _preserve_rng_state: bool, *args: Any) -> Any:
        return run_function(*args)

    with mock.patch.object(CheckpointFunction, "apply", staticmethod(apply)):
        yield


def _refuse_backward(refused: list[CaptureError]) -> Callable[..., NoReturn]:
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        error = CaptureError(
            "SW0104",
            "the model takes gradients inside its forward",
            place=lines.with_source(lines.trace_of_caller(sys._getframe(1))),
            why="the graph would hold that backward as plain operators, cut from the outer gradient",
            fix="move the call out of the module, or write the derivative with operators",
        )
        refused.append(error)
        raise error

    return refuse


@contextmanager
def _autocast_refused(refused: list[CaptureError]) -> Iterator[None]:
    """By what the model asks for: where the device is missing, PyTorch switches it off itself."""
    original_init: Callable[..., None] = torch.autocast.__init__
    original_enter: Callable[..., Any] = torch.autocast.__enter__
    signature = inspect.signature(original_init)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        self._shardwright_asked = bool(bound.arguments["enabled"])

    def enter(self: Any) -> Any:
        if getattr(self, "_shardwright_asked", self._enabled):
            refused.append(autocast_error(lines.trace_of_caller(sys._getframe(1))))
            raise refused[-1]
        return original_enter(self)

    with (
        mock.patch.object(torch.autocast, "__init__", init),
        mock.patch.object(torch.autocast, "__enter__", enter),
    ):
        yield


def autocast_error(trace: str | None) -> CaptureError:
    return CaptureError(
        "SW0106",
        "the model switches autocast on inside its forward",
        place=lines.with_source(trace),
        why="what autocast does depends on the device, which the graph does not know",
        fix="cast explicitly (`x.to(torch.bfloat16)`), or ask for a precision when compiling",
    )


def _with_notes(original: Callable[..., torch.fx.Node]) -> Callable[..., torch.fx.Node]:
    """Notes the model's line, where PyTorch would note its own, and whether gradients are on:
    PyTorch's regions lose that where they are nested. Its later passes copy both."""

    def create_node(graph: torch.fx.Graph, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = original(graph, *args, **kwargs)
        if node.op == "call_function":
            node.meta[NO_GRAD] = not torch.is_grad_enabled()
            node.stack_trace = lines.trace_of_caller(sys._getframe(1)) or None
        return node

    return create_node
