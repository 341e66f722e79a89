"""Functions: by name, as every rank finds them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .calls import read, results_read
from .changes import changes, version_of
from .depth import inside
from .registry import registered_as


def name_of(kind: Any) -> str | None:
    """By which every rank finds a class, if there is such a name."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        return name if named(name) is kind else None
    except (ImportError, AttributeError, ValueError):
        return None


def named(name: str) -> Any:
    home, _, inside = name.partition(":")
    value: Any = sys.modules.get(home) or importlib.import_module(home)
    for part in inside.split("."):
        value = getattr(value, part)
    return value


def _function(
    name: str,
    tensors: list[Tensor | None],
    call: str,
    rule: str = "",
    dims: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[Tensor]:
    wanted = results_read(call, sizes or ())
    fake = any(isinstance(tensor, FakeTensor) for tensor in tensors)
    if wanted and fake:
        return [torch.empty(shape, dtype=dtype) for dtype, shape in wanted]
    function = named(name)
    registered = registered_as(name)
    if fake and registered is not None and registered.fake is not None:
        function = registered.fake
    versions = [version_of(tensor) for tensor in tensors]
    results = tensors_among(called(function, *read(call, tensors, sizes or ())))
    if [version_of(tensor) for tensor in tensors] != versions:
        raise changes(f"`{name}`", None)
    return results


def called(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What it gives, and what it calls is its own."""
    with inside():
        return getattr(function, "apply", function)(*args, **kwargs)


def tensors_among(result: Any) -> list[Tensor]:
    leaves = result if isinstance(result, (tuple, list)) else (result,)
    return [physical(leaf) for leaf in leaves if isinstance(leaf, Tensor)]


def physical(x: Tensor) -> Tensor:
    """A conjugate or a negative that PyTorch only notes, as a value: what reads it was traced without the
    note."""
    return x.resolve_conj().resolve_neg()


_LIBRARY = torch.library.Library("shardwright", "FRAGMENT")
_LIBRARY.define(
    "function(str name, Tensor?[] tensors, str call, str rule='', str[]? dims=None, int[]? sizes=None)"
    " -> Tensor[]"
)
_LIBRARY.impl("function", _function, "CompositeImplicitAutograd")
