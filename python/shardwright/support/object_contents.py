"""What lies in a value that an attribute holds: in containers, and in objects of the model's own."""

from __future__ import annotations

import sys
import types
from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (list, dict, set, deque)
_NOT_THE_MODELS = sys.stdlib_module_names - {"__main__"} | {"torch", "numpy"}
# What every module has.
OWN = frozenset(vars(nn.Module()))
# Deeper than this nobody keeps the state of a forward.
_DEEPEST = 6


def walk(value: Any, seen: set[int], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A value and all that is in it, each with how to get there; nothing that was seen before."""
    yield path, value
    if depth == _DEEPEST or isinstance(value, PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    for step, inner in _inside(value):
        yield from walk(inner, seen, path + step, depth + 1)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in list(value.items()))
    elif isinstance(value, (list, tuple, deque)):
        # A class of the model's own may refuse to say how long it is, which a list asks for.
        yield from ((f"[{at}]", inner) for at, inner in enumerate(list(iter(value))))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{{{inner!r}}}", inner) for inner in list(value) if isinstance(inner, PLAIN))
    elif has_attributes(value):
        yield from ((f".{name}", inner) for name, inner in list(vars(value).items()))


def has_attributes(value: Any) -> bool:
    """An object of the model's own: no module, class, function, tensor or part of PyTorch."""
    if isinstance(value, (nn.Module, Tensor, type, types.ModuleType, *CONTAINERS, tuple, Mapping)):
        return False
    if isinstance(value, (types.SimpleNamespace, Namespace)):
        return True
    home = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and not callable(value) and home not in _NOT_THE_MODELS
