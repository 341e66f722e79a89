"""From a function and an example to the text of its rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._core import Discovery
from ..errors import CaptureError
from .confirming import confirmed
from .resizing import Resizing
from .subject import CODE, Subject
from .trying import At, Holds, Split, Trying

# Splits of one size: tensors with more have many dims of many factors.
_MOST = 4096


@dataclass(frozen=True)
class FoundDim:
    """A dim along which the function may be split."""

    name: str
    size: int
    mark: str
    inputs: list[At]
    outputs: list[At]
    once: list[int]
    """Tensors that only one part is given."""
    argument: str | None
    """That is its size."""


@dataclass
class Discovered:
    """A rule, and what speaks for it."""

    name: str
    rule: str
    """Its text, all of which was compared."""
    sizes: dict[str, str]
    """Dims, with the arguments that are their sizes."""
    dims: list[FoundDim]
    linear: list[list[int]]
    example: tuple[list[list[int]], list[list[int]]]
    """The shapes of tensors and results."""
    calls: int
    """How often the function ran."""
    splits: int
    """How many were tried."""
    trials: int
    """With how many sets of numbers."""
    shapes: list[list[list[int]]]
    """Those of the tensors with which the rule was compared."""
    verified: int
    """Ways to split it that were compared so."""
    difference: float
    """The largest that was met, relative to a tensor's largest element."""
    untried: list[str]
    refuted: list[str]
    """What held for the example, and not when the whole rule was compared."""
    held: list[tuple[Split, Holds]]
    """The splits, as they were tried."""
    failed: str | None
    """What became of the most tensors that were divided along their first dims, and do not hold."""
    operator: bool = False
    """Of PyTorch or of a library, and no function of Python."""

    @property
    def text(self) -> str:
        """As it is registered."""
        sizes = ", ".join(f'"{dim}": "{argument}"' for dim, argument in self.sizes.items())
        call = f'sw.register_op("{self.rule}"{f", sizes={{{sizes}}}" if sizes else ""})'
        return f"{call}(torch.ops.{self.name})" if self.operator else f"@{call}"


def discover(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Discovered:
    """The rule of a function, of which the example says what tensors it takes."""
    return discover_of(Subject.from_call(function, args, kwargs or {}))


def discover_of(subject: Subject) -> Discovered:
    trying = Trying.from_subject(subject)
    outputs = [list(output.shape) for output in trying.trials[0].outputs]
    discovery = Discovery(subject.shapes, outputs, subject.values, _MOST)
    splits, held, untested = 0, [], []
    failed: dict[str, int] = {}
    for split in _splits(discovery, subject):
        splits += 1
        holds = trying.holds(split)
        why = trying.untested(split, holds) if holds is not None and subject.thorough else None
        if why is not None:
            untested.append(why)
        elif holds is None and all(dim == 0 for _, dim, _ in split.inputs):
            # A batch is tried of more and more tensors: the last of its ways says most.
            along = ", ".join(f"dim 0 of tensor {at}" for at, _, _ in split.inputs)
            failed[f"divided along {along}, {trying.why}"] = len(split.inputs)
        elif holds is not None and discovery.hold(holds.mark, holds.outputs, holds.once):
            held.append((split, holds))
    resizing = Resizing(subject, discovery, held)
    resizing.drop_fixed()
    once = sorted({at for _, holds in held for at in holds.once})
    taught = any(weight is not None for weight in trying.trials[0].weights)
    proposal = confirmed(subject, discovery, resizing, trying.linear(once), taught)
    dims = sorted(_dims(proposal.names, subject, held), key=lambda dim: (len(dim.name), dim.name))
    return Discovered(
        name=subject.name,
        rule=proposal.rule,
        sizes={dim.name: dim.argument for dim in dims if dim.argument is not None},
        dims=dims,
        linear=proposal.linear,
        example=(subject.shapes, outputs),
        calls=subject.calls,
        splits=splits,
        trials=len(trying.trials),
        shapes=proposal.shapes,
        verified=proposal.verified,
        difference=proposal.difference,
        untried=list(_untried(subject, discovery)),
        refuted=[*dict.fromkeys(untested), *proposal.dropped],
        held=held,
        failed=max(failed, key=lambda why: failed[why], default=None),
        operator=isinstance(subject.function, torch._ops.OpOverload),
    )


def discover_or_why(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Discovered | None, str | None]:
    """Its rule, or why none can be looked for."""
    try:
        return discover(function, args, kwargs), None
    except CaptureError as error:
        if error.code != CODE:
            raise
        return None, error.why


def _splits(discovery: Discovery, subject: Subject) -> Iterator[Split]:
    """Of what is used without having been read, whole dims only."""
    shapes = subject.shapes
    while (proposed := discovery.next()) is not None:
        split = Split(*proposed)
        if not subject.thorough or all(shapes[at][dim] == split.size for at, dim, _ in split.inputs):
            yield split


def _dims(names: Sequence[str], subject: Subject, held: Sequence[tuple[Split, Holds]]) -> Iterator[FoundDim]:
    for name, (split, holds) in zip(names, held, strict=True):
        argument = None if split.argument is None else subject.arguments[split.argument]
        yield FoundDim(name, split.size, holds.mark, list(split.inputs), holds.outputs, holds.once, argument)


def _untried(subject: Subject, discovery: Discovery) -> Iterator[str]:
    ones = [at for at, shape in enumerate(subject.shapes) if 1 in shape]
    if ones:
        which = ", ".join(map(str, ones))
        yield f"dims of one element, in tensor {which}: an example with more would tell"
    if discovery.left_out:
        yield f"{discovery.left_out:,} ways to divide factors of several tensors: give a smaller example"
