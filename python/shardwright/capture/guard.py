"""What must not happen while a forward is traced, because the graph would silently lose it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest import mock

import torch
from torch.utils.checkpoint import CheckpointFunction

from ..errors import CaptureError
from . import lines

# PyTorch's own uses of Function under an operator that stays whole in the graph.
_HARMLESS = ("torch._library", "torch._higher_order_ops", "torch._functorch", "torch._subclasses")


@contextmanager
def guarded() -> Iterator[None]:
    """Refuses custom Functions and backward passes inside forward; marks nodes with lines.

    The first refusal is raised at the end too, in case the model's code swallowed it.
    """
    refused: list[CaptureError] = []
    function = sys.modules["torch.autograd.function"]
    watch = _watched(function._is_setup_context_defined, refused)  # type: ignore[attr-defined]
    with (
        mock.patch.object(function, "_is_setup_context_defined", watch),
        mock.patch.object(torch.autograd.Function, "apply", _plain_checkpoint()),
        mock.patch.object(torch.autograd, "_engine_run_backward", _refuse_backward(refused)),
        mock.patch.object(torch.fx.Graph, "create_node", _with_line(torch.fx.Graph.create_node)),
    ):
        try:
            yield
        except Exception:
            if refused:
                raise refused[0] from None
            raise
    if refused:
        raise refused[0]


def _watched(original: Callable[..., bool], refused: list[CaptureError]) -> Callable[..., bool]:
    """Function.apply asks this first, also where a model holds on to a bound ``apply``."""

    def watch(setup_context: Any) -> bool:
        caller = sys._getframe(1)
        kind = caller.f_locals.get("cls")
        if isinstance(kind, type) and not kind.__module__.startswith(_HARMLESS):
            refused.append(_function_error(kind, lines.trace_of_caller(caller)))
            raise refused[-1]
        return original(setup_context)

    return watch


def _function_error(kind: type, trace: str) -> CaptureError:
    return CaptureError(
        "SW0103",
        f"the model calls `{kind.__name__}.apply`, a custom torch.autograd.Function",
        place=lines.with_source(trace),
        why="capture would keep its forward and drop its backward, and the model would train wrongly",
        fix="write it with PyTorch's own operators, or make it a torch.library.custom_op with"
        " register_autograd",
    )


def _plain_checkpoint() -> classmethod[Any, Any, Any]:
    """Reentrant checkpointing becomes a plain forward; what is recomputed is the plan's choice."""
    original = torch.autograd.Function.apply.__func__

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls is CheckpointFunction:
            run_function, _preserve_rng_state, *rest = args
            return run_function(*rest)
        return original(cls, *args, **kwargs)

    return classmethod(apply)


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


def _with_line(original: Callable[..., torch.fx.Node]) -> Callable[..., torch.fx.Node]:
    """PyTorch records its own innermost line; ours is the model's. Later passes carry it on."""

    def create_node(graph: torch.fx.Graph, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = original(graph, *args, **kwargs)
        if node.op == "call_function":
            node.stack_trace = lines.trace_of_caller(sys._getframe(1)) or None
        return node

    return create_node
