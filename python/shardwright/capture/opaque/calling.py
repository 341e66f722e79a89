"""Calls of functions that run as the Python they are, while a model is traced: one operator each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from ... import as_python
from ..._core import check_rule
from ...errors import CaptureError
from .. import lines
from ..autocast import ambient
from ..random.draws import Recording
from .learning import learning, may_learn, which_learn


def called(
    name: str,
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    cannot: Callable[[str], NoReturn],
) -> Any:
    """What it gives, as an operator's result. `cannot` is told why it is none."""
    if ambient():
        cannot("it is called under autocast, and a graph has explicit casts")
    try:
        call = Call.from_call(name, function, args, kwargs)
        tried = _try(function, call)
        if tried.in_place:
            cannot("it changes a tensor that it is given, and the graph knows no such change")
        if tried.draws:
            cannot("it draws random numbers, and ranks would draw different ones")
        place = lines.with_source(lines.trace_of_caller(sys._getframe(1)))
        rule = call.checked_rule(tensors_of(tried.result), place)
        results = torch.ops.shardwright.function(name, learning(call.tensors, tried.inputs), call.text, *rule)
        return _like(tried.result, iter(learning(results, tried.outputs)))
    except as_python.NotPlain as error:
        cannot(f"{error} cannot be written into a graph")


@dataclass(frozen=True)
class Call:
    """A call, and the rule that is registered for it."""

    name: str
    text: str
    tensors: list[Tensor]
    registered: as_python.Registered | None
    rule: str
    sizes: dict[str, int]

    @classmethod
    def from_call(cls, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        one = as_python.registered_as(name)
        rule = one.text(args, kwargs) if one else ""
        args, kwargs, sizes = one.with_sizes(function, args, kwargs) if one else (args, kwargs, {})
        text, tensors = as_python.written(args, kwargs)
        return cls(name, text, tensors, one, rule, sizes)

    def checked_rule(self, results: Sequence[Tensor], place: str | None) -> tuple[Any, ...]:
        """The operator's last arguments."""
        if not self.rule:
            return ()
        inputs, outputs = ([list(x.shape) for x in tensors] for tensors in (self.tensors, results))
        check_rule(self.name, self.rule, (inputs, outputs), list(self.sizes.items()), place)
        return (self.rule, list(self.sizes), list(self.sizes.values())) if self.sizes else (self.rule,)


@dataclass(frozen=True)
class _Tried:
    """What a function does with tensors such as these."""

    result: Any
    in_place: bool
    """Whether it changes one that it is given."""
    draws: bool
    """Whether random numbers are drawn, forward or backward."""
    inputs: list[bool]
    """Which of them get a gradient."""
    outputs: list[bool]
    """Which of its tensors have one."""


def _try(function: Any, call: Call) -> _Tried:
    fake = call.registered and call.registered.fake
    with (
        disable_proxy_modes_tracing(),
        torch._C.DisableTorchFunction(),
        torch.enable_grad(),
        as_python.inside(),
        Recording() as recording,
    ):
        given = [tensor.detach().requires_grad_(may_learn(tensor)) for tensor in call.tensors]
        # What learns must not be changed in place.
        copies = [tensor.clone() for tensor in given]
        args, kwargs = as_python.read(call.text, copies, list(call.sizes.values()))
        try:
            result = as_python.called(fake or function, args, kwargs)
        except Exception as error:
            if call.registered is None:
                raise
            raise _needs_fake(call, error) from error
        outputs = tensors_of(result)
        in_place = any(copy._version for copy in copies)
        if fake:
            # It says nothing of gradients.
            return _Tried(result, in_place, False, [True] * len(given), [may_learn(x) for x in outputs])
        learns = which_learn(given, outputs)
        return _Tried(result, in_place, bool(recording.draws), learns, [x.requires_grad for x in outputs])


def tensors_of(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def _like(result: Any, tensors: Iterator[Tensor]) -> Any:
    """Other tensors in the places of a result's own."""
    if isinstance(result, (tuple, list)):
        return tuple(_like(leaf, tensors) for leaf in result)
    if result is None:
        return None
    if isinstance(result, Tensor):
        return next(tensors)
    raise as_python.NotPlain(f"a `{type(result).__name__}`, which it returns")


def refusal(label: str, why: str) -> CaptureError:
    return CaptureError(
        "SW0103",
        f"the model calls `{label}`, which cannot be an operator",
        place=lines.with_source(lines.trace_of_caller(sys._getframe(1))),
        why=why,
        fix=_FIX,
    )


def _needs_fake(call: Call, error: Exception) -> CaptureError:
    return CaptureError(
        "SW0140",
        f"`{call.name}` does not run on tensors without values",
        place=lines.with_source(lines.trace_of_caller(sys._getframe(1))),
        why=lines.said_by(error),
        fix="register it with `fake=`, a function that gives empty tensors of its results' shapes and dtypes",
    )


_FIX = (
    "define it at the top of a module, and let it take and give tensors and plain values;"
    " or put the call into a module of its own, which then runs as it is"
)
