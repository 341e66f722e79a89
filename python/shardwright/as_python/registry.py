"""Functions whose rule someone has registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._library.custom_ops import CustomOpDef

from .._core import check_rule
from ..errors import PlanError
from .calls import Size

F = TypeVar("F")
Text = str | Callable[..., str]


@dataclass(frozen=True)
class Registered:
    """A function, a Function or an operator of `torch.library`, and how it may be split."""

    function: Any
    name: str
    """By which every rank finds it."""
    rule: Text
    sizes: Mapping[str, str]
    """Dims of the rule, with the arguments that are their sizes."""
    fake: Callable[..., Any] | None
    inputs: Callable[..., Any] | None
    """Of tensors with random numbers those that it is tried on."""
    place: str
    """Where it was registered."""

    def text(self, args: Any, kwargs: Any) -> str:
        return self.rule if isinstance(self.rule, str) else self.rule(*args, **kwargs)

    def with_sizes(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any, dict[str, int]]:
        """The arguments with the sizes taken out, and these."""
        if not self.sizes:
            return args, kwargs, {}
        bound = signature_of(function).bind(*args, **kwargs)
        bound.apply_defaults()
        sizes = {dim: bound.arguments[argument] for dim, argument in self.sizes.items()}
        for dim, argument in self.sizes.items():
            if type(sizes[dim]) is not int:
                what = f"`{argument}`, the size of `{dim}`, is {sizes[dim]!r}"
                raise misuse(self.name, what, "give it an int", self.place)
        open_sizes = {argument: Size(at) for at, argument in enumerate(self.sizes.values())}
        return *_given_as_before(bound, args, kwargs, open_sizes), sizes


def _given_as_before(
    bound: inspect.BoundArguments, args: Any, kwargs: Any, others: Mapping[str, Any]
) -> tuple[Any, Any]:
    """A call with some arguments replaced. What was given by name still is: a decorator may look for it."""
    parameters = bound.signature.parameters.values()
    if not kwargs or any(p.kind is p.POSITIONAL_ONLY for p in parameters):
        bound.arguments.update(others)
        return bound.args, bound.kwargs
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    first = [others.get(name, value) for name, value in zip(names, args, strict=False)]
    by_name = {name: value for name, value in others.items() if name not in names[: len(args)]}
    return (*first, *args[len(first) :]), {**kwargs, **by_name}


_ALL: dict[str, Registered] = {}


def register_op(
    rule: Text,
    *,
    sizes: Mapping[str, str] | None = None,
    fake: Callable[..., Any] | None = None,
    inputs: Callable[..., Any] | None = None,
) -> Callable[[F], F]:
    """Registers how a function may be split. It stays one operator, and runs as the Python that it is.

    `rule` names the dims of each tensor argument and of each result (`docs/how-to/custom-operators.md`). Or
    it is a function that is given a call's arguments, and gives that text. `sizes` says for which dims an
    argument is the size: a part is given its own. `fake` gives results of the right shapes where tensors have
    no values, for functions that do not run so. `inputs` is given tensors of random numbers, and gives those
    that the function is tried on, where it does not take any.

    It may stand above a function at the top of a module or a custom `torch.autograd.Function`, or be called
    with one, or with an operator of `torch.library`.
    """

    def register(function: F) -> F:
        place = place_of(inspect.currentframe())
        name = _name_of(function, place)
        one = Registered(function, name, rule, dict(sizes or {}), fake, inputs, place)
        if isinstance(rule, str):
            check_rule(name, rule, None, [], place)
        known = signature_of(function).parameters
        for argument in one.sizes.values():
            if argument not in known:
                raise misuse(
                    name, f"it has no argument `{argument}`", f"name one of {', '.join(known)}", place
                )
        _ALL[name] = one
        return function

    return register


def registered_as(name: str) -> Registered | None:
    return _ALL.get(name)


def all_registered() -> Iterator[Registered]:
    yield from _ALL.values()


@contextmanager
def for_now(one: Registered) -> Iterator[None]:
    """Registered meanwhile."""
    before = _ALL.get(one.name)
    _ALL[one.name] = one
    try:
        yield
    finally:
        del _ALL[one.name]
        if before is not None:
            _ALL[one.name] = before


def library_name(operator: torch._ops.OpOverload) -> str:
    """An operator of `torch.library`, as ranks find it."""
    space, _, name = operator._schema.name.partition("::")
    return f"torch:ops.{space}.{name}.{operator._overloadname}"


def signature_of(function: Any) -> inspect.Signature:
    if isinstance(function, torch._ops.OpOverload):
        kind = inspect.Parameter
        parameters = [
            kind(
                argument.name,
                kind.KEYWORD_ONLY if argument.kwarg_only else kind.POSITIONAL_OR_KEYWORD,
                default=argument.default_value if argument.has_default_value() else kind.empty,
            )
            for argument in function._schema.arguments
        ]
        return inspect.Signature(parameters)
    if isinstance(function, type):
        forward = function.forward  # type: ignore[attr-defined]
        known = list(inspect.signature(forward).parameters.values())
        has_setup_context = function.setup_context is not torch.autograd.Function.setup_context  # type: ignore[attr-defined]
        return inspect.Signature(known if has_setup_context else known[1:])
    if not isinstance(function, (torch._ops.OpOverloadPacket, CustomOpDef)):
        return inspect.signature(function)
    return signature_of(_overload(function))


def misuse(name: str, why: str, fix: str, place: str) -> PlanError:
    return PlanError("SW0337", f"`{name}` cannot be registered", place=place, why=why, fix=fix)


def _overload(function: Any) -> Any:
    if isinstance(function, CustomOpDef):
        return function._opoverload
    return getattr(function, "default", function)


def _name_of(function: Any, place: str) -> str:
    function = _overload(function) if not isinstance(function, type) else function
    if isinstance(function, torch._ops.OpOverload):
        return library_name(function)
    is_function = inspect.isfunction(function)
    if not is_function and not (isinstance(function, type) and issubclass(function, torch.autograd.Function)):
        what = "it is not a function, a `torch.autograd.Function` or an operator of `torch.library`"
        raise misuse(str(function), what, "register what the model calls", place)
    if "." in function.__qualname__ and is_function:
        what = "it does not stand at the top of a module, so other ranks do not find it by its name"
        raise misuse(function.__qualname__, what, "move it there", place)
    return f"{function.__module__}:{function.__qualname__}"


def place_of(frame: Any) -> str:
    """Of whoever calls what runs there."""
    caller = frame.f_back
    return f"{caller.f_code.co_filename}:{caller.f_lineno}"
