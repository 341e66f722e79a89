"""Operators that run as the Python they were: custom autograd Functions, functions that read values, and
modules that stay as they are.

`torch.ops.shardwright.function` and `.module` stand in captured graphs and run there and in emitted
programs, differentiably. How each is called is a text in Python's own notation, with `T0`, `T1`... for
tensors and what comes out behind an arrow: `(T0, scale=0.5) -> float32[4,8]`.
"""

from __future__ import annotations

import ast
import importlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from .errors import RuntimeFault
from .precision import dtype_name, dtype_named

_LIBRARY = torch.library.Library("shardwright", "FRAGMENT")
_LIBRARY.define("function(str name, Tensor[] tensors, str call) -> Tensor[]")
_LIBRARY.define(
    "module(str path, str[] names, Tensor[] state, Tensor[] tensors, str call, str[] updated, bool training,"
    " int? draws) -> Tensor[]"
)
OPERATORS = (torch.ops.shardwright.function.default, torch.ops.shardwright.module.default)
_HERE = "device"
_WORDS: dict[str, Any] = {"inf": math.inf, "nan": math.nan}
_TENSOR = re.compile(r"T(\d+)")
_RESULT = re.compile(r"(\w+)\[([\d,]*)\]")


M = TypeVar("M", bound=nn.Module)


class NotPlain(Exception):
    """An argument or a result of which a text says nothing; its message is what it is."""


# ---- calls as text ---------------------------------------------------------------------------


def written(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[Tensor]]:
    """A call's arguments as text, and its tensors."""
    tensors: list[Tensor] = []
    parts = [_write(arg, tensors) for arg in args]
    parts += [f"{name}={_write(arg, tensors)}" for name, arg in kwargs.items()]
    return f"({', '.join(parts)})", tensors


def results_written(results: Sequence[tuple[torch.dtype, Sequence[int]]]) -> str:
    return ", ".join(f"{dtype_name(dtype)}[{','.join(map(str, shape))}]" for dtype, shape in results)


def read(text: str, tensors: Sequence[Tensor]) -> tuple[list[Any], dict[str, Any]]:
    tree = ast.parse("f" + text.partition(" -> ")[0], mode="eval").body
    assert isinstance(tree, ast.Call)
    args = [_read(arg, tensors) for arg in tree.args]
    return args, {str(keyword.arg): _read(keyword.value, tensors) for keyword in tree.keywords}


def results_read(text: str) -> list[tuple[torch.dtype, list[int]]]:
    found = _RESULT.findall(text.partition(" -> ")[2])
    return [(dtype_named(dtype), [int(size) for size in sizes.split(",") if size]) for dtype, sizes in found]


def _write(value: Any, tensors: list[Tensor]) -> str:
    if isinstance(value, Tensor):
        tensors.append(value)
        return f"T{len(tensors) - 1}"
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
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


def _read(node: ast.expr, tensors: Sequence[Tensor]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return [_read(item, tensors) for item in node.elts]
        case ast.Tuple():
            return tuple(_read(item, tensors) for item in node.elts)
        case ast.Dict():
            keys = [_read(key, tensors) for key in node.keys if key is not None]
            return dict(zip(keys, (_read(value, tensors) for value in node.values), strict=True))
        case ast.UnaryOp(op=ast.USub()):
            return -_read(node.operand, tensors)
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return dtype_named(name)
        case ast.Name(id=name) if name == _HERE:
            return next((tensor.device for tensor in tensors), torch.device("cpu"))
        case ast.Name(id=name) if found := _TENSOR.fullmatch(name):
            return tensors[int(found[1])]
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
    raise ValueError(f"no argument of a call: {ast.dump(node)}")


# ---- Functions ------------------------------------------------------------------------------


def name_of(kind: type) -> str | None:
    """By which every rank finds a class, if there is such a name."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        return name if found(name) is kind else None
    except (ImportError, AttributeError, ValueError):
        return None


def found(name: str) -> Any:
    home, _, inside = name.partition(":")
    value: Any = sys.modules.get(home) or importlib.import_module(home)
    for part in inside.split("."):
        value = getattr(value, part)
    return value


def _function(name: str, tensors: list[Tensor], call: str) -> list[Tensor]:
    wanted = results_read(call)
    if wanted and any(isinstance(tensor, FakeTensor) for tensor in tensors):
        return [torch.empty(shape, dtype=dtype) for dtype, shape in wanted]
    args, kwargs = read(call, tensors)
    function = found(name)
    with inside():
        result = getattr(function, "apply", function)(*args, **kwargs)
    leaves = result if isinstance(result, (tuple, list)) else (result,)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


_DEPTH: ContextVar[int] = ContextVar("depth", default=0)


@contextmanager
def inside() -> Iterator[None]:
    token = _DEPTH.set(_DEPTH.get() + 1)
    try:
        yield
    finally:
        _DEPTH.reset(token)


def is_inside() -> bool:
    """Whether such an operator runs: what it calls is its own."""
    return _DEPTH.get() > 0


# ---- modules --------------------------------------------------------------------------------


MARK = "_shardwright_opaque"


def opaque(module: M) -> M:
    """Lets a module of a model run as the Python that it is: it becomes one operator, which no plan divides.

    For what cannot or shall not be traced. It may read the values of tensors, call kernels of others, draw
    random numbers; its parameters are trained and its buffers updated as on one device. It is given tensors
    and plain values, and gives tensors whose sizes do not depend on data.
    """
    setattr(module, MARK, True)
    return module


@dataclass(frozen=True)
class Modules:
    """Where modules that stay as they are are found."""

    get: Callable[[str], nn.Module]
    chance: Callable[[str, int], AbstractContextManager[None]] = lambda _path, _call: nullcontext()
    """Around a call that draws random numbers: which module's, and which of its calls."""


_MODULES: ContextVar[Modules | None] = ContextVar("modules", default=None)


@contextmanager
def running(modules: Modules | None) -> Iterator[None]:
    token = _MODULES.set(modules)
    try:
        yield
    finally:
        _MODULES.reset(token)


def tensors_of(path: str, result: Any) -> list[Tensor]:
    """The tensors of a module's result."""
    leaves = pytree.tree_leaves(result)
    other = next(
        (leaf for leaf in leaves if not (leaf is None or isinstance(leaf, (Tensor, str, bool)))), None
    )
    if other is not None:
        raise NotPlain(f"a `{type(other).__name__}`, which `{path}` returns,")
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class _Forward(nn.Module):
    """A module without its hooks, which stand in the graph."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.forward(*args, **kwargs)


def _module(
    path: str,
    names: list[str],
    state: list[Tensor],
    tensors: list[Tensor],
    call: str,
    updated: list[str],
    training: bool,
    draws: int | None,
) -> list[Tensor]:
    wanted = results_read(call)
    if any(isinstance(tensor, FakeTensor) for tensor in (*state, *tensors)):
        return [torch.empty(shape, dtype=dtype) for dtype, shape in wanted]
    if torch.compiler.is_compiling():
        raise RuntimeError(f"the module `{path}` runs as it is")
    modules = _MODULES.get()
    if modules is None:
        raise RuntimeFault(
            "SW0864",
            f"the program runs the module `{path}` of the model as it is, and was loaded without the model",
            fix="start it with `sw.parallelize`, which is given the model",
        )
    module = modules.get(path)
    if module.training != training:
        module.train(training)
    args, kwargs = read(call, tensors)
    # What may be changed in place is a copy.
    held = {
        f"inner.{name}": tensor if tensor.requires_grad else tensor.clone()
        for name, tensor in zip(names, state, strict=True)
    }
    with inside(), nullcontext() if draws is None else modules.chance(path, draws):
        results = tensors_of(path, torch.func.functional_call(_Forward(module), held, tuple(args), kwargs))
    results += [held[f"inner.{name}"].detach() for name in updated]
    _require(path, results, wanted)
    return results


def _require(path: str, results: list[Tensor], wanted: list[tuple[torch.dtype, list[int]]]) -> None:
    now = [(tensor.dtype, list(tensor.shape)) for tensor in results]
    if now != wanted:
        raise RuntimeFault(
            "SW0865",
            f"the module `{path}`, which runs as it is, returns something else than when it was captured",
            why=f"it was {results_written(wanted) or 'nothing'}, now {results_written(now) or 'nothing'}",
            fix="let what it returns have sizes that do not depend on data, or make the module around it"
            " one that runs as it is: `shardwright.opaque(module)`",
        )


_LIBRARY.impl("function", _function, "CompositeImplicitAutograd")
_LIBRARY.impl("module", _module, "CompositeImplicitAutograd")
