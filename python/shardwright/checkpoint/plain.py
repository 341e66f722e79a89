"""Plain data: what a checkpoint gives back without running anybody's code."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import RuntimeFault, with_article

_LEAVES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size, torch.device)


def plain(value: Any, name: str) -> Any:
    """The value with its objects replaced by their `state_dict()`; refuses what is not plain data."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {_key(key, name): plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(plain(item, f"{name}[{at}]") for at, item in enumerate(value))
    if isinstance(value, _LEAVES) and type(value).__module__ in ("builtins", "torch"):
        return value
    if callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
        return plain(value.state_dict(), f"{name}.state_dict()")
    number = _number(value)
    if number is not None:
        return number
    raise _strange(name, value)


def packed(value: Any) -> bytes:
    """The same bytes for the same value."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _key(key: Any, name: str) -> Any:
    if isinstance(key, (bool, int, float, str, tuple, type(None))):
        return key
    raise _strange(f"the key {key!r} of {name}", key)


def _number(value: Any) -> Any:
    """NumPy's scalars and arrays, as Python's and PyTorch's."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value.copy())
    return None


def _strange(name: str, value: Any) -> RuntimeFault:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return RuntimeFault(
        "SW0743",
        f"{name} cannot be saved",
        why=f"{with_article(kind)} is not plain data, and a checkpoint runs no code when it is read",
        fix="save numbers, strings, tensors, and lists and dicts of them; or an object with a `state_dict()`",
    )
