"""Which inputs are known while a model is traced: those that a user names, or all where one is needed.

Most models read no values, and are traced with none known. Where one does, it is traced again with the values
of all inputs. If it gets past that line, what it reads there follows from inputs. If not it does not, and it
is traced as if inputs had no values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from ...errors import CaptureError
from ..lines import place_in
from ..spec import CallSpec
from .named import ALL, KnownInputs, advice_to_know, not_noted, require_whole
from .reading import Reading

# What may come of a value that is not known, while a model is traced.
_MAY_READ = ("SW0101", "SW0102")
# The graph went another way than the model: it may have looked whether it is traced, and left a value unread.
_OTHER_WAY = "SW0114"
# What is only refused where inputs are known, or says nothing of what is read.
_SAYS_LESS = ("SW0101", "SW0146")
# Of a forward's operations.
_LITTLE = 0.05
T = TypeVar("T")


class Inputs:
    """As the user states it: those of some names, or none."""

    floats = True
    """Whether Python is told numbers that are no integers."""

    def __init__(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], names: str | Sequence[str]
    ) -> None:
        self._make = lambda known: CallSpec.of_call(module.forward, args, kwargs, known)
        self._args, self._kwargs = args, kwargs
        self._set(names)

    def _set(self, names: str | Sequence[str]) -> None:
        self.call: CallSpec = self._make(names)
        self.known: list[Tensor] = self.call.known(self.call.bind(self._args, self._kwargs))

    def helps(self, error: CaptureError) -> bool:
        """Whether to trace again, since that may go otherwise now."""
        return False

    def as_read(self, reading: Reading) -> CallSpec:
        """The calls that the graph is for."""
        if not reading.lost:
            return self.call.read_by(reading)
        for name, tensor in zip(self.call.known_names, self.known, strict=True):
            require_whole(name, tensor, reading.lost)
        return self.call

    def advice(self, reasons: Sequence[str]) -> list[str]:
        """A note on what runs as it is, for these reasons."""
        return [] if self.known else advice_to_know(reasons, noticed=False)


class Noticed(Inputs):
    """None, or all that have values: as the last error says. Numbers that are no integers are others in each
    batch, and a model that reads them is better told so."""

    floats = False

    def __init__(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], known: bool = False
    ) -> None:
        super().__init__(module, args, kwargs, ALL if known else ())
        self.were_known = known
        self.read = self.read_much = False
        self._tried: set[Any] = set()
        self._at: Any = None

    def helps(self, error: CaptureError) -> bool:
        at = error.code, error.what, error.place, place_in(error)
        if self.known:
            if at == self._at:
                self._set(())
            return False
        if error.code not in _MAY_READ or at in self._tried:
            return False
        self._tried.add(at)
        self._at = at
        self._set(ALL)
        self.were_known |= bool(self.known)
        return bool(self.known)

    def as_read(self, reading: Reading) -> CallSpec:
        """Not for all that inputs hold: each batch would be another program's."""
        if reading.lost:
            raise not_noted(self.call.known_names[0], reading.lost)
        self.read, self.read_much = bool(reading.inputs), reading.is_much
        return super().as_read(reading)

    def advice(self, reasons: Sequence[str]) -> list[str]:
        return [] if self._make(ALL).known_names else advice_to_know(reasons, noticed=True)


def with_inputs(
    make: Callable[[Inputs], T],
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: KnownInputs,
    share: Callable[[T], float] | None = None,
) -> T:
    """What `make` captures of a call, with those inputs known that are named, or that it takes. Where none is
    named, `share` says how much of what was captured runs as it is, if that may be compared."""
    if names is not None:
        return make(Inputs(module, args, kwargs, names))
    inputs, none = Noticed(module, args, kwargs), Inputs(module, args, kwargs, ())
    try:
        captured = make(inputs)
        if share is None or not inputs.read:
            return captured
        return (
            _better(captured, make, none, share)
            if inputs.read_much or share(captured) > _LITTLE
            else captured
        )
    except CaptureError as error:
        first = error
    if inputs.were_known:
        other = none
    elif first.code == _OTHER_WAY:
        other = Noticed(module, args, kwargs, known=True)
    else:
        raise first
    try:
        return make(other)
    except CaptureError as second:
        # Who knows inputs gets further, and says what stands in the way behind what they tell.
        raise (second if inputs.were_known and first.code in _SAYS_LESS else first) from None


def _better(first: T, make: Callable[[Inputs], T], none: Inputs, share: Callable[[T], float]) -> T:
    """Of one that is for much that it reads, as which rows have labels, each batch may need another; and one
    may run as it is in much all the same. One that reads nothing is better, if little more of it does."""
    try:
        other = make(none)
    except CaptureError:
        return first
    return other if share(other) <= share(first) + _LITTLE else first
