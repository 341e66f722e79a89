"""Rules that somebody states for a module, compared with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from .._core import Operator
from ..as_python import Marked
from ..capture.lines import said_by
from ..discovering import Subject
from ..discovering.confirming import verified
from ..errors import CaptureError
from ..rules.verifying import wrong_rule
from .calls import Call

# Of a dim that may be split, where fewer will do.
_FEW = 6


def refuse_unfit(call: Call, mark: Marked) -> None:
    if call.unfit is not None:
        raise CaptureError(
            "SW0175",
            f"`{call.name}` cannot be divided as its rule says",
            place=mark.place,
            why=call.unfit,
            fix="state no rule for it, `shardwright.opaque(module)`; or move that out of the module",
        )


def compared(call: Call, mark: Marked, operator: Operator, model: nn.Module) -> str | None:
    """Refuses a rule that does not hold. Gives why it could not be compared."""
    smaller = operator.smaller(_FEW)
    if smaller is None:
        return "a tensor of no elements is among those that it is given"
    sizes, shapes, _ = smaller
    arguments = dict(mark.sizes)
    few = replace(call, tensors=[*_cut(call.tensors, shapes[len(call.state) :])])
    subject = _subject(few, dict(zip(arguments.values(), sizes, strict=False)))
    if isinstance(subject, str):
        # A dim that must not be split may have no other size.
        subject = _subject(call, {})
    if isinstance(subject, str):
        return subject
    assert mark.rule is not None
    outcomes = verified(subject, mark.rule, arguments)
    wrong = [one for one in outcomes if one.problem is not None]
    if wrong:
        raise wrong_rule(wrong, type(model).__name__, f"`{call.name}`", mark.place)
    return next((one.skipped for one in outcomes if one.skipped), None)


def _subject(call: Call, instead: dict[str, int]) -> Subject | str:
    """What is tried, or why that is not possible."""
    try:
        return call.subject(instead)
    except CaptureError as error:
        return error.why or error.what
    except Exception as error:  # a copy that cannot be made
        return f"it cannot be tried ({said_by(error)})"


def _cut(tensors: list[Tensor], shapes: list[list[int]]) -> Iterator[Tensor]:
    for tensor, shape in zip(tensors, shapes, strict=True):
        for dim, size in enumerate(shape):
            tensor = tensor.narrow(dim, 0, size)
        yield tensor
