"""Calls as text."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..precision import dtype_name, dtype_named
from ..support import syntax_trees

_HERE = "device"
_WORDS: dict[str, Any] = {"inf": math.inf, "nan": math.nan}
_TENSOR = re.compile(r"T(\d+)")
_SIZE = re.compile(r"S(\d+)")
_RESULT = re.compile(r"(\w+)\[([\dS*,]*)\]")
Kind = tuple[torch.dtype, Sequence[int]]


@dataclass(frozen=True)
class Size:
    """In the place of an argument that another part is given another one of."""

    at: int


class NotPlain(Exception):
    """An argument or a result of which a text says nothing; its message is what it is."""


def written(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[Tensor]]:
    """A call's arguments as text, and its tensors."""
    tensors: list[Tensor] = []
    parts = [_write(arg, tensors) for arg in args]
    parts += [f"{name}={_write(arg, tensors)}" for name, arg in kwargs.items()]
    return f"({', '.join(parts)})", tensors


def results_written(results: Sequence[tuple[torch.dtype, Sequence[int]]]) -> str:
    return ", ".join(f"{dtype_name(dtype)}[{','.join(map(str, shape))}]" for dtype, shape in results)


def read(
    text: str, tensors: Sequence[Tensor | None], sizes: Sequence[int] = ()
) -> tuple[list[Any], dict[str, Any]]:
    tree = syntax_trees.expression("f" + text.partition(" -> ")[0])
    assert isinstance(tree, ast.Call)
    reader = _Reader(tensors, sizes)
    args = [reader.value(arg) for arg in tree.args]
    return args, {str(keyword.arg): reader.value(keyword.value) for keyword in tree.keywords}


def results_read(text: str, sizes: Sequence[int] = ()) -> list[tuple[torch.dtype, list[int]]]:
    """Where a part gives less than the whole, its own sizes are in them: `float32[S0,S1*4]`."""
    results = _RESULT.findall(text.partition(" -> ")[2])
    return [
        (dtype_named(dtype), [_product(dim, sizes) for dim in dims.split(",") if dim])
        for dtype, dims in results
    ]


def says_results(text: str) -> bool:
    return " -> " in text


def _product(text: str, sizes: Sequence[int]) -> int:
    words = text.split("*")
    return math.prod(sizes[int(word[1:])] if word.startswith("S") else int(word) for word in words)


def _write(value: Any, tensors: list[Tensor]) -> str:
    if isinstance(value, Tensor):
        tensors.append(value)
        return f"T{len(tensors) - 1}"
    if isinstance(value, Size):
        return f"S{value.at}"
    if value is None or type(value) in (bool, int, float, str):
        # The first arrow is that before the results.
        return repr(value).replace("->", "-\\x3e")
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.device):
        return _HERE
    if type(value) in (list, tuple, torch.Size):
        inside = ", ".join(_write(item, tensors) for item in value)
        return f"[{inside}]" if type(value) is list else f"({inside}{',' * (len(value) == 1)})"
    if type(value) is dict and all(type(key) is str for key in value):
        return f"{{{', '.join(f'{key!r}: {_write(item, tensors)}' for key, item in value.items())}}}"
    raise NotPlain(f"a `{type(value).__name__}`")


@dataclass(frozen=True)
class _Reader:
    tensors: Sequence[Tensor | None]
    sizes: Sequence[int]

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.List():
                return [self.value(item) for item in node.elts]
            case ast.Tuple():
                return tuple(self.value(item) for item in node.elts)
            case ast.Dict():
                keys = [self.value(key) for key in node.keys if key is not None]
                return dict(zip(keys, map(self.value, node.values), strict=True))
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return dtype_named(name)
            case ast.Name(id=name) if name == _HERE:
                here = (tensor.device for tensor in self.tensors if tensor is not None)
                return next(here, torch.device("cpu"))
            case ast.Name(id=name) if match := _TENSOR.fullmatch(name):
                return self.tensors[int(match[1])]
            case ast.Name(id=name) if match := _SIZE.fullmatch(name):
                return self.sizes[int(match[1])]
            case ast.Name(id=name) if name in _WORDS:
                return _WORDS[name]
        raise ValueError(f"no argument of a call: {ast.dump(node)}")
