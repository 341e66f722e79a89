"""The operators of a graph that run as they are, and have no rule yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .. import as_python
from .._core import Graph
from ..as_python.registry import Registered, signature_of
from ..discovering import Subject
from ..discovering.whole import Whole

MODULE = "shardwright.module.default"
FUNCTION = "shardwright.function.default"
# Where an operator has them, by position.
_STATE, _CALL, _UPDATED, _TRAINING, _DRAWS = 2, 4, 5, 6, 7


def calls_without_rule(graph: Graph) -> Iterator[int]:
    """By the operators' numbers."""
    for at, operator in enumerate(graph.operators):
        if operator.target in (MODULE, FUNCTION) and operator.rule is None:
            yield at


@dataclass
class Call:
    """One of them, with what it is given."""

    at: int
    name: str
    """A module's path, a function's name."""
    is_module: bool
    text: str
    tensors: list[Tensor]
    state: list[Tensor]
    updated: list[str]
    draws: bool
    training: bool
    function: Any
    """Of a module the module."""

    @classmethod
    def from_model(cls, at: int, args: Sequence[Any], model: nn.Module) -> Call:
        if len(args) > _DRAWS:
            part = model.get_submodule(args[0])
            tensors, draws = args[_STATE + 1], args[_DRAWS] is not None
            text = args[_CALL]
            more = list(args[_UPDATED]), draws, args[_TRAINING]
            return cls(at, args[0], True, text, tensors, args[_STATE], *more, part)
        name, tensors, text = args[:3]
        return cls(at, name, False, text, tensors, [], [], False, False, as_python.named(name))

    @property
    def unfit(self) -> str | None:
        """Why its parts would not do what the whole does, whatever a rule says."""
        if self.updated:
            return f"it updates its buffer `{self.updated[0]}`, which each part would update by its own share"
        return "it draws random numbers, and parts would draw others" if self.draws else None

    @property
    def kind(self) -> tuple[Any, ...]:
        """Calls of one kind are likely to have one rule."""
        shapes = [(x.dtype, *x.shape) for x in (*self.tensors, *self.state)]
        return (type(self.function) if self.is_module else self.name, self.text, self.training, *shapes)

    def given(self, instead: Mapping[str, int] | None = None) -> tuple[Any, Any]:
        """Its arguments, of which some are to be others."""
        args, kwargs = as_python.read(self.text, self.tensors)
        if not instead:
            return args, kwargs
        bound = signature_of(self.target).bind(*args, **kwargs)
        bound.apply_defaults()
        bound.arguments.update(instead)
        return bound.args, bound.kwargs

    @property
    def target(self) -> Any:
        return self.function.forward if self.is_module else self.function

    def subject(self, instead: Mapping[str, int] | None = None) -> Subject:
        """To be tried."""
        args, kwargs = self.given(instead)
        if not self.is_module:
            return Subject.from_call(self.function, args, kwargs, thorough=True)
        whole = Whole(self.name, self.function, self.training)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return whole.wide(*args, **kwargs)

        forward.__signature__ = signature_of(self.target)  # type: ignore[attr-defined]
        return Subject.from_call(forward, args, kwargs, whole, thorough=True)

    def without_sizes(self, sizes: Mapping[str, str], place: str) -> tuple[str | None, list[tuple[str, int]]]:
        """The call's text without the arguments that are sizes of dims, and these; no text without any."""
        if not sizes:
            return None, []
        one = Registered(self.target, self.name, "", sizes, None, None, place)
        args, kwargs, named = one.with_sizes(self.target, *self.given())
        text, _ = as_python.written(args, kwargs)
        _, arrow, results = self.text.partition(" -> ")
        return text + arrow + results, list(named.items())
