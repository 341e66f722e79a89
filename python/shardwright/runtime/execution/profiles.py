"""Names of calls, backwards and messages, for a profiler and for the error where memory ends.

A span is `causal_self_attention transformer.h.3.attn`, `grad` before it where it is the backward's, and for a
message `all_reduce causal_self_attention transformer.h.3.attn`: its kind and the code that ran before it.
While nobody profiles, a flag of PyTorch's is read for each, and nothing else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import profiler

from ..guards.out_of_memory import OutOfMemory, out_of_memory
from ..programs.program import name_of_call
from ..shards.shards import Node

if TYPE_CHECKING:
    from .run import Run

Method = TypeVar("Method", bound=Callable[..., Any])

_GRADS = ("grad", "grad_inputs", "grad_weights")
_EXCHANGES = ("exchange", "send", "receive", "exchange_gradients")
_WITHOUT_GROUP = ("release", "part_gradients")
_OF_PLACES = ("reduce_gradients", "gather", "release", "scatter_gradients", "part_gradients", "reduce_shards")


def spanned(method: Method) -> Method:
    """A method of `Run` that emitted code calls, as a span of a profile."""
    kind = method.__name__

    @wraps(method)
    def around(run: Run, *args: Any, **kwargs: Any) -> Any:
        try:
            if not profiler._is_profiler_enabled:
                return method(run, *args, **kwargs)
            with profiler.record_function(name_of(run, kind, args, kwargs.get("at"))):
                return method(run, *args, **kwargs)
        except OutOfMemory:
            raise
        except torch.OutOfMemoryError as error:
            name = name_of(run, kind, args, kwargs.get("at"))
            raise out_of_memory(run.worker.program, run.comm, f"`{name}`", error) from error

    return around  # type: ignore[return-value]


def name_of(run: Run, kind: str, args: Sequence[Any], at: int | None = None) -> str:
    if kind == "call":
        function, *given = args
        run.at = run.spans[name_of_call(function, at)] = f"{function.__name__} {_path(run, given)}".rstrip()
        return run.at
    if kind in _GRADS:
        # Of a call that nobody profiled its modules are not known.
        name = name_of_call(args[0], at)
        run.at = f"{kind} {run.spans.get(name, name)}"
        return run.at
    if kind in _EXCHANGES:
        program = run.worker.program
        names = program.tensors[program.exchanges[args[0]].tensor].names
        return f"{kind} {names[0] if names else run.at}".rstrip()
    if kind in _OF_PLACES:
        return f"{kind} {_path(run, args[0] if kind in _WITHOUT_GROUP else args[1])}".rstrip()
    return f"{kind} {run.at}".rstrip()


def _path(run: Run, places: Sequence[Any]) -> str:
    """The innermost module that has all leaves of some places."""
    names = [name for place in places for name in _names(run, place)]
    if not names:
        return ""
    first, *rest = (name.split(".")[:-1] or [name] for name in names)
    shared = len(first)
    for other in rest:
        same = (at for at, (one, another) in enumerate(zip(first, other, strict=False)) if one != another)
        shared = next(same, min(shared, len(other)))
        first = first[:shared]
    return ".".join(first)


def _names(run: Run, place: Any) -> Iterator[str]:
    """Of the parameters and buffers that the leaves of a place are of."""
    if isinstance(place, Node):
        for below in vars(place).values():
            yield from _names(run, below)
    elif isinstance(place, Tensor) and (at := run.leaves.index.get(id(place))) is not None:
        tensor = run.worker.shards.held[run.worker.table.leaves[at].shard].tensor
        yield from tensor.names[:1]
