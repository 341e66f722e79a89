"""`lengths=`: batches are filled up to the next length, and each program is proved to see nothing of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._core import Graph, prove_filled
from ..capture import Captured, capture
from ..errors import CaptureError, ShardwrightError
from ..runtime.execution.inputs import Arguments
from .lengths import filled, not_there, sorted_lengths


@dataclass(frozen=True, init=False)
class Lengths:
    """A few lengths that `parallelize` fills batches up to, where it is proved that nothing changes.

    `values` says which arguments of the model have the length along `dim`, by name or position, and with
    what each is filled: -100 for labels that a loss ignores, 0 for a mask. All have one length in a batch.
    """

    lengths: tuple[int, ...]
    values: Mapping[str | int, float] = field(hash=False)
    dim: int

    def __init__(
        self, lengths: int | Sequence[int], values: Mapping[str | int, float], *, dim: int = 1
    ) -> None:
        ordered = sorted_lengths(lengths)
        if not ordered or not values or any(length < 1 for length in ordered):
            raise CaptureError(
                "SW0172",
                f"Lengths({lengths!r}, {values!r}) pads nothing",
                why="it takes lengths from one on, and a value for each argument that has them",
                fix='such as `sw.Lengths([128, 256], {"input_ids": 0, "labels": -100})`',
            )
        for name, value in {"lengths": ordered, "values": dict(values), "dim": dim}.items():
            object.__setattr__(self, name, value)


LengthsLike = Lengths | Sequence[Lengths]

# Of the shortest length, programs are compared with a batch of so many: fewer are often a case of their own.
FEW = 3


@dataclass(frozen=True)
class _Argument:
    """Where a call has it: under its name, else in its place."""

    name: str
    place: int | None
    value: float

    def value_in(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
        if self.name in kwargs:
            value = kwargs[self.name]
        else:
            value = args[self.place] if self.place is not None and self.place < len(args) else None
        return value if isinstance(value, Tensor) else None


class Padding:
    """What is filled up of a model's calls."""

    def __init__(self, lengths: LengthsLike, forward: Callable[..., Any]):
        self.lengths = (lengths,) if isinstance(lengths, Lengths) else tuple(lengths)
        names = list(inspect.signature(forward).parameters)
        self._arguments = [
            [_argument(key, value, names) for key, value in one.values.items()] for one in self.lengths
        ]

    def __repr__(self) -> str:
        return repr(self.lengths)

    def first(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """An example, filled up. It has all that is named."""
        for argument in (argument for arguments in self._arguments for argument in arguments):
            if argument.value_in(args, kwargs) is None:
                raise not_there(argument.name, self._names(args, kwargs))
        return self.fill(args, kwargs)

    def fill(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """A call with its tensors filled up; what it lacks, an evaluation without labels say, is left out."""
        made = (list(args), dict(kwargs))
        for one, arguments in zip(self.lengths, self._arguments, strict=True):
            there = [(argument, argument.value_in(args, kwargs)) for argument in arguments]
            given = {argument: tensor for argument, tensor in there if tensor is not None}
            _require_one_length(given, one.dim)
            for argument, tensor in given.items():
                _put(made, argument, filled(argument.name, tensor, one.lengths, argument.value, one.dim))
        return tuple(made[0]), made[1]

    def prove(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        captured: Captured,
        capturing: Mapping[str, Any],
    ) -> None:
        """Refuses a program for a filled call that would mix in what is filled."""
        short_args, short_kwargs, lengths = self._shorter(args, kwargs)
        if not lengths:
            return
        positions = {name: at for at, name in enumerate(captured.in_spec.input_names())}
        fills = [
            [
                (positions[argument.name], dim, argument.value)
                for argument, dim in group
                if argument.name in positions
            ]
            for group in lengths
        ]
        shorter = _captured(module, short_args, short_kwargs, capturing)
        others = _other_constants(captured, shorter)
        prove_filled(Graph(captured.graph_text), Graph(shorter.graph_text), fills, others)

    def _shorter(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any], list[list[tuple[_Argument, int]]]]:
        """A call with fewer elements along each of the lengths, by another number for each; which arguments
        these are, and their dims."""
        made, groups = (list(args), dict(kwargs)), []
        gaps: list[int] = []
        for one, arguments in zip(self.lengths, self._arguments, strict=True):
            given = {argument: argument.value_in(args, kwargs) for argument in arguments}
            there = {argument: tensor for argument, tensor in given.items() if tensor is not None}
            if not there:
                continue
            size = next(iter(there.values())).shape[one.dim]
            short = _short(size, one.lengths, gaps)
            if short == size:
                continue
            gaps.append(size - short)
            for argument, tensor in there.items():
                _put(made, argument, _cut(tensor, one.dim, short))
            groups.append([(argument, one.dim % tensor.dim()) for argument, tensor in there.items()])
        return tuple(made[0]), made[1], groups

    def _names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        tensors = [name for name, value in kwargs.items() if isinstance(value, Tensor)]
        return [*map(str, range(len(args))), *tensors]


def padding_of(lengths: LengthsLike | None, module: nn.Module, inputs: str) -> Padding | None:
    if lengths is None:
        return None
    padding = Padding(lengths, module.forward)
    if inputs == "local" and any(one.dim == 0 for one in padding.lengths):
        raise CaptureError(
            "SW0172",
            'rows of a batch are padded with inputs="global" only',
            why="a rank that is given its own part does not know how many rows the batch has",
            fix="pad the whole batch with `sw.pad_to` before it is split",
        )
    return padding


def _captured(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], capturing: Mapping[str, Any]
) -> Captured:
    """A shorter call, which nothing is run of, and for which no rules are looked for."""
    known = {name: value for name, value in capturing.items() if name != "discover"}
    try:
        return capture(module, args, kwargs, verify=False, **known)
    except ShardwrightError as error:
        raise CaptureError(
            "SW0172",
            "the model can be captured with a padded batch, but not with a shorter one",
            place=error.place,
            why=error.why or error.what,
            fix="name in `lengths` all arguments that have the length, and let the model work for less of it",
        ) from error


def _argument(key: str | int, value: float, names: Sequence[str]) -> _Argument:
    if isinstance(key, int):
        return _Argument(names[key] if key < len(names) else str(key), key, value)
    return _Argument(key, names.index(key) if key in names else None, value)


def _put(made: tuple[list[Any], dict[str, Any]], argument: _Argument, tensor: Tensor) -> None:
    if argument.name in made[1]:
        made[1][argument.name] = tensor
    else:
        assert argument.place is not None
        made[0][argument.place] = tensor


def _cut(tensor: Tensor, dim: int, size: int) -> Tensor:
    """With memory of its own, as a batch of that size has."""
    return tensor.detach().narrow(dim, 0, size).clone(memory_format=torch.contiguous_format)


def _short(size: int, lengths: Sequence[int], others: Sequence[int]) -> int:
    """The shortest batch that is filled up to a size, or a little longer, so that each of several lengths
    differs by another number, none of them so many times another."""
    before = [length for length in lengths if length < size]
    shortest = min(before[-1] + 1 if before else FEW, size - 1)

    def is_new(gap: int) -> bool:
        return all(gap % other and other % gap for other in others)

    fitting = (
        short for short in [*range(shortest, size), *range(shortest - 1, 0, -1)] if is_new(size - short)
    )
    return next(fitting, shortest) if size > 1 else size


def _require_one_length(given: Mapping[_Argument, Tensor], dim: int) -> None:
    sizes = {
        argument.name: tensor.shape[dim]
        for argument, tensor in given.items()
        if -tensor.dim() <= dim < tensor.dim()
    }
    if len(set(sizes.values())) > 1:
        raise CaptureError(
            "SW0172",
            f"tensors that are padded together have different lengths along dim {dim}",
            why=", ".join(f"{name} has {size}" for name, size in sizes.items()),
            fix="give each length a `sw.Lengths` of its own: `lengths=[sw.Lengths(...), sw.Lengths(...)]`",
        )
    for argument, tensor in given.items():
        if tensor.requires_grad:
            raise CaptureError(
                "SW0172",
                f"{argument.name!r} is padded, and requires a gradient",
                why="its gradient would be that of the padded tensor",
                fix="pad with `sw.pad_to` before, whose gradient leads to the original tensor",
            )


def _other_constants(long: Captured, short: Captured) -> list[str]:
    """What a model makes of a length outside of operators is in no operator."""

    def differs(name: str, value: Tensor) -> bool:
        other = short.constants.get(name)
        return other is not None and other.shape == value.shape and not torch.equal(other, value)

    return [name for name, value in long.constants.items() if differs(name, value)]
