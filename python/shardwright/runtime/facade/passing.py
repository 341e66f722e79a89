"""The model's own attributes and methods, on the parallel model.

A method runs with the parallel model as `self`. Parameters have the shapes of the single device there, and
nobody computes with them: of some this rank has parts.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...errors import RuntimeFault

_NOTHING = object()
# Whatever is asked of a parameter but its values.
HARMLESS = {
    "requires_grad", "requires_grad_", "dtype", "device", "dim", "ndim", "is_floating_point", "is_complex",
    "is_leaf", "grad", "layout", "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested",
    "element_size", "__hash__", "_backward_hooks", "_post_accumulate_grad_hooks", "grad_fn", "itemsize",
    "register_hook", "register_post_accumulate_grad_hook", "grad_dtype", "names", "_version",
}  # fmt: skip
_program = threading.local()


def passed_on(place: nn.Module, module: nn.Module, name: str) -> Any:
    """What `module`, the model as it was written, has under a name that `place` has not."""
    if name in vars(module):
        return vars(module)[name]
    attribute = inspect.getattr_static(type(module), name, _NOTHING)
    if attribute is _NOTHING or any(name in vars(kind) for kind in nn.Module.__mro__):
        raise AttributeError(f"{type(module).__name__!r} object has no attribute {name!r}")
    if isinstance(attribute, functools.cached_property):
        return _on_the_whole(place, name, attribute.func)(place)
    if isinstance(attribute, property) and attribute.fget is not None:
        return _on_the_whole(place, name, attribute.fget)(place)
    if inspect.isfunction(attribute):
        return functools.partial(_on_the_whole(place, name, attribute), place)
    return getattr(type(module), name)


@contextmanager
def program_runs() -> Iterator[None]:
    """A method may call the model: what the program computes is right."""
    before = getattr(_program, "runs", False)
    _program.runs = True
    try:
        yield
    finally:
        _program.runs = before


def _on_the_whole(place: nn.Module, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if name == "generate":
            raise _refusal(name, "it calls the model with ever new lengths, and each would need a program")
        with Whole(name, place.__dict__["_facade"].shapes):
            return function(*args, **kwargs)

    return call


class Whole(TorchFunctionMode):
    """In here nobody computes with certain parameters, which seem to have these shapes."""

    def __init__(self, method: str, shapes: Mapping[int, torch.Size]):
        super().__init__()
        self._method, self._shapes = method, shapes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        part = None if getattr(_program, "runs", False) else self._part(args, kwargs or {})
        if part is not None:
            name = name_of(func)
            if name in ("shape", "size", "numel", "nelement"):
                return _sized(name, self._shapes[id(part)], args[1:], kwargs or {})
            if name not in HARMLESS:
                raise _refusal(
                    self._method, f"it computes with a parameter of which a rank has a shard (`{name}`)"
                )
        return func(*args, **(kwargs or {}))

    def _part(self, args: Any, kwargs: Any) -> Tensor | None:
        flat = [*args, *kwargs.values()]
        flat += [inner for value in flat if isinstance(value, (list, tuple)) for inner in value]
        return next((x for x in flat if isinstance(x, Tensor) and id(x) in self._shapes), None)


def name_of(func: Any) -> str:
    """Of a property's getter that of the property."""
    name = str(getattr(func, "__name__", ""))
    return (
        getattr(getattr(func, "__self__", None), "__name__", name) if name in ("__get__", "__set__") else name
    )


def _sized(name: str, shape: torch.Size, args: Any, kwargs: Any) -> Any:
    if name in ("numel", "nelement"):
        return shape.numel()
    dim = args[0] if args else kwargs.get("dim")
    return shape if dim is None else shape[dim]


def _refusal(method: str, why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0809",
        f"`{method}` of the model cannot run on a parallelized one",
        why=why,
        fix="call it on the plain model: `plain.load_state_dict(model.full_state_dict());"
        f" plain.{method}(...)`",
    )
