"""Modules of the model that are called as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from .._core import check_rule
from ..errors import RuntimeFault
from .calls import NotPlain, read, results_read, results_written, says_results
from .changes import changes, version_of
from .depth import inside
from .functions import physical
from .registry import misuse, place_of

M = TypeVar("M", bound=nn.Module | type[nn.Module])
MARK = "_shardwright_opaque"


@dataclass(frozen=True)
class Marked:
    """What somebody says of a module that stays as it is."""

    rule: str | None
    sizes: tuple[tuple[str, str], ...]
    """Dims of the rule, with the arguments that are their sizes."""
    place: str
    """Where it was said."""


def opaque(module: M, rule: str | None = None, *, sizes: Mapping[str, str] | None = None) -> M:
    """Lets a module of a model run as the Python that it is: it becomes one operator.

    For what cannot or shall not be traced. It may read the values of tensors, call kernels of others, draw
    random numbers; its parameters are trained and its buffers updated as on one device. It is given tensors
    and plain values, and gives tensors whose sizes do not depend on data. Of a class, all its modules are
    meant.

    No plan divides it, unless a `rule` says how: it names the dims of each tensor that the module is given
    and of each result, as `register_op` tells, and a part of the module is called with parts of the tensors
    and with all of its parameters. `sizes` says for which dims an argument is the size. A module with a rule
    neither draws nor updates buffers.
    """
    place = place_of(inspect.currentframe())
    name = getattr(module, "__qualname__", type(module).__qualname__)
    if not isinstance(module, nn.Module) and not (isinstance(module, type) and issubclass(module, nn.Module)):
        raise misuse(name, "it is neither a module nor a class of modules", "give one", place)
    if rule is None and sizes:
        raise misuse(name, "there are sizes of dims, and no rule that names these", "give a rule", place)
    if rule is not None:
        check_rule(name, rule, None, [], place)
    setattr(module, MARK, Marked(rule, tuple((sizes or {}).items()), place))
    return module


def mark_of(module: nn.Module) -> Marked | None:
    mark = getattr(module, MARK, None)
    return mark if isinstance(mark, Marked) else None


@dataclass(frozen=True)
class Modules:
    """Where modules that stay as they are are found."""

    get: Callable[[str], nn.Module]
    randomness: Callable[[str, int], AbstractContextManager[None]] = lambda _path, _call: nullcontext()
    """Around a call that draws random numbers: which module's, and which of its calls."""


_MODULES: ContextVar[Modules | None] = ContextVar("modules", default=None)


class running:  # noqa: N801
    """While code is called that may run modules as they are. Entered at each call, so it is no generator."""

    __slots__ = ("_modules", "_token")

    def __init__(self, modules: Modules | None):
        self._modules = modules

    def __enter__(self) -> None:
        self._token = _MODULES.set(self._modules)

    def __exit__(self, *_: object) -> None:
        _MODULES.reset(self._token)


def tensors_of(path: str, result: Any) -> list[Tensor]:
    """The tensors of a module's result."""
    leaves = pytree.tree_leaves(result)
    other = next(
        (leaf for leaf in leaves if not (leaf is None or isinstance(leaf, (Tensor, str, bool)))), None
    )
    if other is not None:
        raise NotPlain(f"a `{type(other).__name__}`, which `{path}` returns")
    return [physical(leaf) for leaf in leaves if isinstance(leaf, Tensor)]


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
    tensors: list[Tensor | None],
    call: str,
    updated: list[str],
    training: bool,
    draws: int | None,
    rule: str = "",
    dims: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[Tensor]:
    wanted = results_read(call, sizes or ())
    if any(isinstance(tensor, FakeTensor) for tensor in (*state, *tensors)):
        return [torch.empty(shape, dtype=dtype) for dtype, shape in wanted]
    if any(isinstance(tensor, FunctionalTensor) for tensor in (*state, *tensors)):
        # `torch.compile` would look into it.
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
    args, kwargs = read(call, tensors, sizes or ())
    # What may be changed in place is a copy.
    held = {
        f"inner.{name}": tensor if tensor.requires_grad else tensor.clone()
        for name, tensor in zip(names, state, strict=True)
    }
    kept = {name: held[f"inner.{name}"] for name in names if name not in updated}
    watched = [*kept.items(), *(("", tensor) for tensor in tensors)]
    versions = [version_of(tensor) for _, tensor in watched]
    with inside(), nullcontext() if draws is None else modules.randomness(path, draws):
        results = tensors_of(path, torch.func.functional_call(_Forward(module), held, tuple(args), kwargs))
    for (name, tensor), version in zip(watched, versions, strict=True):
        if (name and held[f"inner.{name}"] is not tensor) or version_of(tensor) != version:
            raise changes(f"the module `{path}`", f"its `{name}`" if name else None)
    results += [held[f"inner.{name}"].detach() for name in updated]
    if says_results(call):
        _require(path, results, wanted)
    return results


def _require(path: str, results: list[Tensor], wanted: list[tuple[torch.dtype, list[int]]]) -> None:
    now = [(tensor.dtype, list(tensor.shape)) for tensor in results]
    if now != wanted:
        raise RuntimeFault(
            "SW0865",
            f"the module `{path}`, which runs as it is, returns something else than when it was captured",
            why=f"it was {results_written(wanted) or 'nothing'}, now {results_written(now) or 'nothing'}",
            fix="let its results have sizes that do not depend on data, or let the module around it"
            " run as it is: `shardwright.opaque(module)`",
        )


_LIBRARY = torch.library.Library("shardwright", "FRAGMENT")
_LIBRARY.define(
    "module(str path, str[] names, Tensor[] state, Tensor?[] tensors, str call, str[] updated, bool training,"
    " int? draws, str rule='', str[]? dims=None, int[]? sizes=None) -> Tensor[]"
)
_LIBRARY.impl("module", _module, "CompositeImplicitAutograd")
