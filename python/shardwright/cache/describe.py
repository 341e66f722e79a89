"""Values as bytes for a key: equal values give equal bytes, in every process.

What cannot be described so (a lock, an open file) raises `Unknown`: then nothing is cached.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import logging
import re
import types
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn

from ..runtime.communication.messages import bytes_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_TORCH_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
# What `torch.nn.Module` counts for itself, and what a forward writes there without reading it.
_IGNORED = {"_is_full_backward_hook", "_compiled_call_impl", "__weakref__"}
# Numbers that are others in every process: a hash that Transformers keeps of a configuration.
_OF_THE_PROCESS = ("_original_object_hash",)


class Unknown(Exception):
    """A value that has no description."""

    def __init__(self, what: str):
        super().__init__(what)
        self.what = what


class Describer:
    """Feeds one hash. `reach` is told of functions, classes and modules that values lead to."""

    def __init__(self, reach: Callable[[Describer, Any], None]):
        self._hash = hashlib.sha256()
        self._reach = reach
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []
        self.path: list[str] = []

    def put(self, *words: str | bytes) -> None:
        for word in words:
            data = word.encode() if isinstance(word, str) else word
            self._hash.update(len(data).to_bytes(8, "little"))
            self._hash.update(data)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def named(self, name: str, value: Any) -> None:
        self.put(name)
        self.path.append(name)
        self.value(value)
        self.path.pop()

    def seen(self, value: Any) -> bool:
        """Whether a value was described before; it is named by when. So sharing is described too."""
        number = self._seen.get(id(value))
        if number is not None:
            self.put("seen", str(number))
            return True
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)  # an id names one object only as long as it lives
        return False

    def value(self, value: Any) -> None:
        if isinstance(value, enum.Enum):
            self.put("enum", type(value).__qualname__, value.name)
        elif type(value) in _PLAIN or isinstance(value, _TORCH_PLAIN):
            self.put(type(value).__name__, value if isinstance(value, bytes) else repr(value))
        elif isinstance(value, tuple):
            self._items(_name(type(value)), value)
        elif isinstance(value, (frozenset, set)):
            self._unordered(value)
        elif isinstance(value, (re.Pattern, PurePath, range, slice, torch.finfo, torch.iinfo)):
            self.put(type(value).__name__, repr(value))
        elif isinstance(value, logging.Logger):
            self.put("logger", value.name)
        elif not self.seen(value):
            self._object(value)

    def _object(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, list):
            self._items(_name(type(value)), value)
        elif type(value) is dict or isinstance(value, types.MappingProxyType):
            self._dict(value)
        elif isinstance(value, functools.partial):
            self._items("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            self._items("method", (value.__func__, value.__self__))
        elif isinstance(value, (staticmethod, classmethod)):
            self._items(type(value).__name__, (value.__func__,))
        elif isinstance(value, property):
            self._items("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            self._items("property", (value.func,))
        elif isinstance(value, (types.FunctionType, type, types.ModuleType)):
            self._reach(self, value)
        elif isinstance(value, types.BuiltinFunctionType):
            self.put("builtin", str(value.__module__), value.__qualname__)
        elif hasattr(value, "__wrapped__"):  # functools.lru_cache, and whatever else stands before a function
            self._items(_name(type(value)), (value.__wrapped__,))
        else:
            self._reduced(value)

    def _items(self, what: str, values: Iterable[Any]) -> None:
        values = list(values)
        self.put(what, str(len(values)))
        for at, value in enumerate(values):
            self.named(f"[{at}]", value)

    def _dict(self, values: Any) -> None:
        self.put("dict", str(len(values)))
        for key, value in values.items():
            if isinstance(key, str) and key in _OF_THE_PROCESS:
                continue
            self.value(key)
            self.path.append(f"[{key!r}]"[:80])
            self.value(value)
            self.path.pop()

    def _unordered(self, values: Iterable[Any]) -> None:
        """Each by itself, as a set has no order: only plain values are described so."""
        digests = []
        for value in values:
            describer = Describer(self._reach)
            describer.path = [*self.path]
            describer.value(value)
            digests.append(describer.digest())
        self.put("set", *sorted(digests))

    def _tensor(self, value: Tensor) -> None:
        """A tensor that no table holds is a constant: its values are baked in."""
        self.kind(value)
        if value.is_meta:
            return
        if value.layout is not torch.strided:
            raise self.unknown(f"a tensor of layout {value.layout}")
        self.put(bytes_of(value))

    def kind(self, value: Tensor) -> None:
        """All of a tensor but its values and its machine."""
        stride = tuple(value.stride()) if value.layout is torch.strided else ()
        self.put(
            "tensor", _name(type(value)), str(tuple(value.shape)), str(stride), str(value.dtype),
            str(value.requires_grad),
        )  # fmt: skip

    def _module(self, module: nn.Module) -> None:
        self.put("module", str(module.training))
        self.named("class", type(module))
        for table in (module._parameters, module._buffers):
            self.put("table", str(len(table)))
            for name, tensor in table.items():
                self.put(name)
                if tensor is None:
                    self.put("none")
                elif not self.seen(tensor):
                    self.kind(tensor)
        for name, child in module._modules.items():
            self.named(name, child)
        for name, value in vars(module).items():
            if name not in _MODULE_TABLES and name not in _IGNORED and name != "training":
                self.named(name, value)

    def _reduced(self, value: Any) -> None:
        """Any other object is what copying would take of it."""
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:
            raise self.unknown(f"a {_name(type(value))}") from None
        self.put("object", _name(type(value)))
        self.value(type(value))
        if isinstance(reduced, str):
            self.put(reduced)
            return
        make, args, *rest = reduced
        self.value(make)
        self.value(args)
        for part in rest:
            plain = part is None or isinstance(part, (dict, list, tuple, str, int))
            self.value(part if plain else list(part))

    def unknown(self, what: str) -> Unknown:
        return Unknown(f"{''.join(_step(step) for step in self.path).lstrip('.')} is {what}")


def _step(name: str) -> str:
    return name if name.startswith("[") else f".{name}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
