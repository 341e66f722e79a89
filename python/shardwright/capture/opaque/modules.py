"""Modules that are not traced: each runs in the program as the Python it is, as one operator.

What such an operator gives is learned from forwards with values, before the model is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from operator import or_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ... import as_python
from ...errors import CaptureError
from ..autocast import ambient
from ..lines import place_in, said_in
from .learning import learning
from .plain import stood_for

Kind = tuple[torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class Given:
    """What a call of an opaque module gave."""

    results: tuple[Kind, ...]
    tree: pytree.TreeSpec
    leaves: tuple[Any, ...]
    """Of tensors nothing."""
    updated: dict[str, Kind]
    """The buffers that it changed."""
    draws: bool
    learns: tuple[bool, ...]
    """Which of its parameters, buffers and arguments may get a gradient."""
    taught: tuple[bool, ...]
    """Which of its results have one."""

    def returned(self, results: Sequence[Tensor]) -> Any:
        """The call's result, of an operator's tensors. No gradient is known where nothing is computed."""
        known = zip(results, self.taught, strict=False)
        left = (x.requires_grad_() if taught else x for x, taught in known)
        leaves = [next(left) if leaf is Tensor else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.tree)

    def merged(self, other: Given) -> Given | None:
        """What is right for both of two calls; none if what they gave is of other kinds."""
        if (self.results, self.tree, self.leaves) != (other.results, other.tree, other.leaves):
            return None
        return replace(
            self,
            updated=self.updated | other.updated,
            draws=self.draws or other.draws,
            learns=tuple(map(or_, self.learns, other.learns)),
            taught=tuple(map(or_, self.taught, other.taught)),
        )


@dataclass
class Opaque:
    """The modules that stay as they are, by path, and functions, by name, with why; what their calls gave."""

    why: dict[str, str] = field(default_factory=dict)
    given: dict[str, list[Given]] = field(default_factory=dict)
    operations: dict[str, float] = field(default_factory=dict)
    """Their shares of those of a forward."""
    met: set[str] = field(default_factory=set)
    """The functions that are operators: others are called by what stays as it is."""
    unfit: set[str] = field(default_factory=set)
    """The functions that cannot be operators."""
    checks: dict[str, None] = field(default_factory=dict)
    """The lines of checks that are not made."""

    def add(self, path: str, why: str) -> None:
        """What lies in it runs with it."""
        if self.has(path):
            return
        for inner in [inner for inner in self.why if inner.startswith(f"{path}.")]:
            del self.why[inner]
        self.why[path] = why

    def has(self, path: str) -> bool:
        return any(path == outer or path.startswith(f"{outer}.") for outer in self.why)

    def reasons(self) -> dict[str, tuple[str, float]]:
        """Those that are operators: why, and their share of a forward's operations."""
        whys = ((path, why) for path, why in self.why.items() if not is_function(path) or path in self.met)
        return {path: (why, self.operations.get(path, 0.0)) for path, why in whys}

    def notes(self, module: nn.Module) -> list[str]:
        checks = [f"the check at {line} is left out: it only validates values" for line in self.checks]
        return notes_of(module, self.reasons(), {}) + checks


@dataclass(frozen=True)
class Divided:
    """What became of the rule of a module or function that runs as it is."""

    rule: str | None
    stated: bool
    tried: int = 0
    """With how many sets of numbers, if it was found."""
    why: str = ""
    """None was found."""
    sizes: Mapping[str, str] = field(default_factory=dict)

    def says(self, call: str) -> str:
        if self.rule is None:
            return f"whole on each device that computes it, as no rule was found: {self.why}"
        sizes = ", ".join(f'"{dim}": "{argument}"' for dim, argument in self.sizes.items())
        given = f'"{self.rule}"' + (f", sizes={{{sizes}}}" if sizes else "")
        if self.stated:
            return f"divided by the rule that is stated for it, {given}"
        module = "" if call == "register_op" else "module, "
        return (
            f"divided by a rule that was found, {given}, tried on {self.tried} inputs and not proved"
            f" (`sw.{call}({module}{given})` states it)"
        )


_WHOLE = "whole on each device that computes it"


def notes_of(
    module: nn.Module, reasons: Mapping[str, tuple[str, float]], divided: Mapping[str, Divided]
) -> list[str]:
    """What is told of modules and functions that run as they are: a line for each class, reason and rule."""
    paths_by_reason: dict[tuple[str, str, str], list[str]] = {}
    for path, (why, _) in reasons.items():
        kind = "a function" if is_function(path) else type(module.get_submodule(path)).__name__
        call = "register_op" if is_function(path) else "opaque"
        how = divided[path].says(call) if path in divided else _WHOLE
        paths_by_reason.setdefault((kind, why, how), []).append(path)
    return [
        _note(kind, paths, why, how, sum(reasons[path][1] for path in paths))
        for (kind, why, how), paths in paths_by_reason.items()
    ]


def _note(kind: str, paths: list[str], why: str, how: str, share: float) -> str:
    # Of a function that was not measured, nothing is known but its rule.
    known = f", {share:.1%} of a forward's operations: {why}" if why else ""
    others = f" and {len(paths) - 1} more run as they are" if paths[1:] else " runs as it is"
    return f"`{paths[0]}` ({kind}){others}, {how}{known}"


def marked(module: nn.Module) -> Opaque:
    """Those of which the user said so."""
    opaque = Opaque()
    for path, part in module.named_modules():
        if getattr(part, as_python.MARK, False) and path:
            opaque.add(path, "`shardwright.opaque` asks for it")
    return opaque


# ---- while the model is traced ----------------------------------------------------------------


@contextmanager
def standing_for(module: nn.Module, opaque: Opaque) -> Iterator[None]:
    """Calls of opaque modules are operators, and an error says in which module it arose. Whoever borrowed the
    module takes the wrappers away."""
    for path, part in module.named_modules():
        if path in opaque.why:
            vars(part)["forward"] = _operator(module, path, part, enumerate(opaque.given[path]))
        elif path:
            vars(part)["forward"] = _telling(path, part.forward)
    with ExitStack() as stack:
        for name in filter(is_function, opaque.why):
            make = partial(_function, name, opaque, iter(opaque.given[name]))
            stack.enter_context(stood_for(as_python.named(name), make))
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


def _operator(
    module: nn.Module, path: str, part: nn.Module, calls: Iterator[tuple[int, Given]]
) -> Callable[..., Any]:
    @wraps(part.forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        if ambient():
            raise _under_autocast(path)
        number, one = next(calls)
        text, tensors = _written(f"`{path}`", partial(around, module, path), args, kwargs)
        held = held_by(part)
        if len(held) + len(tensors) != len(one.learns):
            raise around(module, path, "it is given other tensors while the model is traced")
        given = learning([*held.values(), *tensors], one.learns)
        results = torch.ops.shardwright.module(
            path,
            list(held),
            given[: len(held)],
            given[len(held) :],
            f"{text} -> {as_python.results_written([*one.results, *one.updated.values()])}",
            list(one.updated),
            part.training,
            number if one.draws else None,
        )
        with torch.no_grad():
            for name, value in zip(one.updated, results[len(one.taught) :], strict=True):
                held[name].copy_(value)
        return one.returned(results)

    return call


def _function(
    name: str, opaque: Opaque, calls: Iterator[Given], original: Callable[..., Any]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        opaque.met.add(name)
        if ambient():
            raise unfit(name, "it is called under autocast, and a graph has explicit casts")
        text, tensors = _written("it", partial(unfit, name), args, kwargs)
        one = next(calls)
        if len(tensors) != len(one.learns):
            raise unfit(name, "it is given other tensors while the model is traced")
        results = as_python.results_written(one.results)
        given = learning(tensors, one.learns)
        return one.returned(torch.ops.shardwright.function(name, given, f"{text} -> {results}"))

    return call


def _written(
    who: str, refuse: Callable[[str], CaptureError], args: Any, kwargs: Any
) -> tuple[str, list[Tensor]]:
    """What cannot be given from a text makes what is around it stay as it is."""
    try:
        text, tensors = as_python.written(args, kwargs)
    except as_python.NotPlain as error:
        raise refuse(f"{who} is given {error}") from None
    if any(type(size) is not int for tensor in tensors for size in tensor.shape):
        raise refuse(f"{who} is given a tensor whose size depends on data")
    return text, tensors


def _under_autocast(path: str) -> CaptureError:
    why = "it is called under autocast, and a graph has explicit casts"
    return refusal(path, why, "switch autocast off around it, or ask for a precision when compiling")


def around(module: nn.Module, path: str, why: str) -> CaptureError:
    fix = "let the module around it run as it is: `shardwright.opaque(module)`"
    return said_in(_caller(module, path), refusal(path, why, fix))


def is_function(key: str) -> bool:
    return ":" in key


def unfit(name: str, why: str) -> CaptureError:
    """For a function; what is around it then stays as it is."""
    error = refusal(name, why, "put the call into a module of its own")
    setattr(error, UNFIT, name)
    return error


UNFIT = "shardwright_unfit"


def refusal(path: str, why: str, fix: str) -> CaptureError:
    return CaptureError("SW0139", f"`{path}` cannot run as it is", why=why, fix=fix)


def _caller(module: nn.Module, path: str) -> str | None:
    """The module around it that calls it: not a list of modules, and not the model itself."""
    while path := path.rpartition(".")[0]:
        if type(module.get_submodule(path)).forward is not nn.Module.forward:
            return path
    return None


def held_by(part: nn.Module) -> dict[str, Tensor]:
    return {**dict(part.named_parameters()), **dict(part.named_buffers())}
