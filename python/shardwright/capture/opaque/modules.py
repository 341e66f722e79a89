"""Modules that are not traced: each runs in the program as the Python it is, as one operator.

What such an operator gives is learned from forwards with values, before the model is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ... import as_python
from ...errors import CaptureError
from ...generators import states
from ..chance import Recording
from .learning import learning, which_learn

E = TypeVar("E", bound=BaseException)


@dataclass(frozen=True)
class Given:
    """What a call of an opaque module gave."""

    results: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    tree: pytree.TreeSpec
    leaves: tuple[Any, ...]
    """Of tensors nothing."""
    updated: tuple[str, ...]
    """The buffers that it changed."""
    draws: bool
    learns: tuple[bool, ...]
    """Which of its parameters, buffers and arguments get a gradient."""
    taught: tuple[bool, ...]
    """Which of its results have one."""


@dataclass
class Opaque:
    """The modules that stay as they are, by path, with why; and what their calls gave."""

    why: dict[str, str] = field(default_factory=dict)
    given: dict[str, list[Given]] = field(default_factory=dict)
    checks: dict[str, None] = field(default_factory=dict)
    """The lines of checks that are not made."""

    def add(self, path: str, why: str) -> None:
        """What lies in it runs with it."""
        for inner in [inner for inner in self.why if inner.startswith(f"{path}.")]:
            del self.why[inner]
        self.why[path] = why

    def notes(self, module: nn.Module) -> list[str]:
        """What is told of them: a line for each class and reason."""
        found: dict[tuple[str, str], list[str]] = {}
        for path, why in self.why.items():
            found.setdefault((type(module.get_submodule(path)).__name__, why), []).append(path)
        checks = [f"the check at {line} is not made: it only validates values" for line in self.checks]
        return [_note(kind, paths, why) for (kind, why), paths in found.items()] + checks

    def has(self, path: str) -> bool:
        return any(path == outer or path.startswith(f"{outer}.") for outer in self.why)


def _note(kind: str, paths: list[str], why: str) -> str:
    first, *more = paths
    others = f" and {len(more)} more" if more else ""
    return f"`{first}`{others} ({kind}) runs as it is, whole on each device that computes it: {why}"


def marked(module: nn.Module) -> Opaque:
    """Those of which the user said so."""
    found = Opaque()
    for path, part in module.named_modules():
        if getattr(part, as_python.MARK, False) and path and not found.has(path):
            found.add(path, "`shardwright.opaque` asks for it")
    return found


# ---- while the model is traced ----------------------------------------------------------------


@contextmanager
def standing_for(module: nn.Module, opaque: Opaque) -> Iterator[None]:
    """Calls of opaque modules are operators, and an error says in which module it arose. Whoever borrowed the
    module takes the wrappers away."""
    for path, part in module.named_modules():
        if path in opaque.why:
            vars(part)["forward"] = _operator(path, part, enumerate(opaque.given[path]))
        elif path:
            vars(part)["forward"] = _telling(path, part.forward)
    yield


def _telling(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except Exception as error:
            said_in(place_in(error) or path, error)
            raise

    return call


_WHERE = "shardwright_module"


def place_in(error: BaseException) -> str | None:
    """The innermost module that an error passed through, if it is not the model itself."""
    return getattr(error, _WHERE, None)


def said_in(path: str | None, error: E) -> E:
    """An error with the module that it arose in."""
    setattr(error, _WHERE, path)
    return error


def _operator(path: str, part: nn.Module, calls: Iterator[tuple[int, Given]]) -> Callable[..., Any]:
    @wraps(part.forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        number, one = next(calls)
        text, tensors = _written(path, args, kwargs)
        held = _held(part)
        given = learning([*held.values(), *tensors], one.learns)
        results = torch.ops.shardwright.module(
            path,
            list(held),
            given[: len(held)],
            given[len(held) :],
            f"{text} -> {as_python.results_written(one.results)}",
            list(one.updated),
            part.training,
            number if one.draws else None,
        )
        count = len(results) - len(one.updated)
        with torch.no_grad():
            for name, value in zip(one.updated, results[count:], strict=True):
                held[name].copy_(value)
        left = iter(learning(results[:count], one.taught))
        leaves = [next(left) if leaf is Tensor else leaf for leaf in one.leaves]
        return pytree.tree_unflatten(leaves, one.tree)

    return call


def _written(path: str, args: Any, kwargs: Any) -> tuple[str, list[Tensor]]:
    """What the module cannot be given from a text makes the module around it the one that stays as it is."""
    try:
        text, tensors = as_python.written(args, kwargs)
    except as_python.NotPlain as error:
        raise around(path, f"`{path}` is given {error}") from None
    if any(type(size) is not int for tensor in tensors for size in tensor.shape):
        raise around(path, f"`{path}` is given a tensor whose size depends on data")
    return text, tensors


def around(path: str, why: str) -> CaptureError:
    error = CaptureError(
        "SW0139",
        f"the module `{path}` cannot run as it is",
        why=why,
        fix="make the module around it one that runs as it is: `shardwright.opaque(module)`",
    )
    return said_in(path.rpartition(".")[0] or None, error)


def _held(part: nn.Module) -> dict[str, Tensor]:
    return {**dict(part.named_parameters()), **dict(part.named_buffers())}


# ---- forwards with values -----------------------------------------------------------------


@contextmanager
def noting(module: nn.Module, opaque: Opaque) -> Iterator[dict[str, list[Given]]]:
    """Notes what calls of opaque modules give while the model runs."""
    found: dict[str, list[Given]] = {path: [] for path in opaque.why}
    originals: list[tuple[nn.Module, bool, Any]] = []
    try:
        for path in opaque.why:
            part = module.get_submodule(path)
            originals.append((part, "forward" in vars(part), part.forward))
            vars(part)["forward"] = _noted(path, part, part.forward, found[path])
        yield found
    finally:
        for part, own, forward in originals:
            if own:
                vars(part)["forward"] = forward
            else:
                vars(part).pop("forward", None)


def _noted(path: str, part: nn.Module, forward: Callable[..., Any], found: list[Given]) -> Callable[..., Any]:
    @wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = {name: buffer.detach().clone() for name, buffer in part.named_buffers()}
        state = states()
        with Recording() as recording:
            result = forward(*args, **kwargs)
        draws = bool(recording.draws) or states() != state
        after = dict(part.named_buffers())
        updated = tuple(name for name, value in before.items() if not _same(after.get(name), value))
        leaves, tree = pytree.tree_flatten(result)
        try:
            results = as_python.tensors_of(path, result)
            given = [*_held(part).values(), *as_python.written(args, kwargs)[1]]
        except as_python.NotPlain as error:
            raise around(path, str(error)) from None
        shapes = ((x.dtype, tuple(x.shape)) for x in (*results, *(after[name] for name in updated)))
        kept = (Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        learns, taught = which_learn(given, results), (x.requires_grad for x in results)
        found.append(Given(tuple(shapes), tree, tuple(kept), updated, draws, tuple(learns), tuple(taught)))
        return result

    return call


def _same(now: Tensor | None, before: Tensor) -> bool:
    return now is not None and torch.equal(now, before)
