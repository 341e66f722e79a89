"""What a loop changes inside of the model's attributes: in an object such as a config, in a dict or a list.

No setter sees it, so all of it is looked at before each call: a program is made for what is there.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import cached_property
from operator import is_
from typing import Any, NamedTuple

from torch import Tensor, nn

from ...errors import RuntimeFault
from ...support.object_contents import CONTAINERS, OWN, PLAIN, has_attributes, walk
from .named import named_by_forward

_GONE = object()


class _Held(NamedTuple):
    attribute: str
    path: str
    container: Any
    before: dict[Any, Any]


class Change(NamedTuple):
    place: str
    text: str
    kind: str | None = None
    """Of what is no plain data."""


class Contained:
    """All containers and tensors that the attributes lead to, with what was in them at first."""

    def __init__(self, skeleton: nn.Module | None):
        self._skeleton = skeleton
        self._held: list[_Held] = []
        self._tensors: list[tuple[str, Tensor, int]] = []
        seen: set[int] = set()
        for prefix, part in skeleton.named_modules() if skeleton is not None else ():
            for name in [name for name in vars(part) if name not in OWN]:
                path = f"{prefix}.{name}" if prefix else name
                for step, value in walk(vars(part)[name], seen):
                    self._note(name, path + step, value)

    def changes(self) -> list[str]:
        """What is other than at first, in the words of an assignment."""
        return [change.text for change in self._changes()]

    def refuse(self) -> None:
        """Raises for what no program can be made for."""
        for path, tensor, version in self._tensors:
            if tensor._version != version:
                raise refusal(path, "it is a constant of the program; a buffer may change")
        for change in self._changes():
            if change.kind is not None:
                raise refusal(change.place, f"a {change.kind} may change without being set again")

    def _changes(self) -> list[Change]:
        changes: list[Change] = []
        for held in self._held:
            now = _items(held.container)
            if len(now) != len(held.before) or not all(map(is_, now.values(), held.before.values())):
                changes += _differences(held, now, self._read)
        return changes

    def _note(self, attribute: str, path: str, value: Any) -> None:
        if isinstance(value, Tensor):
            if not value.is_inference():
                self._tensors.append((path, value, value._version))
        elif isinstance(value, CONTAINERS) or has_attributes(value):
            self._held.append(_Held(attribute, path, value, dict(_items(value))))

    @cached_property
    def _read(self) -> frozenset[str]:
        """What the model's code does not name is the loop's own."""
        assert self._skeleton is not None
        objects = (held.container for held in self._held if has_attributes(held.container))
        return named_by_forward(self._skeleton, map(type, objects))


def _differences(held: _Held, now: Mapping[Any, Any], read: Container[str]) -> Iterator[Change]:
    is_object = not isinstance(held.container, CONTAINERS)
    for key in {**held.before, **now} if held.attribute in read else ():
        before, value = held.before.get(key, _GONE), now.get(key, _GONE)
        if value is before or (is_object and key not in read):
            continue
        if type(value) is type(before) and _is_data(value) and repr(value) == repr(before):
            continue
        place = f"{held.path}.{key}" if is_object else f"{held.path}[{key!r}]"
        if value is _GONE:
            yield Change(place, f"{place} is gone")
        elif _is_data(value):
            yield Change(place, f"{place} = {value!r}")
        else:
            yield Change(place, f"{place} is another {type(value).__name__}", type(value).__name__)


def _items(container: Any) -> Mapping[Any, Any]:
    # By its type, and not by what it says of itself: a config may look up each attribute that is asked for.
    kind = type(container)
    if issubclass(kind, dict):
        return container  # type: ignore[no-any-return]
    if issubclass(kind, set):
        return {repr(value): value for value in container}
    if issubclass(kind, CONTAINERS):
        return dict(enumerate(container))
    return object.__getattribute__(container, "__dict__")  # type: ignore[no-any-return]


def _is_data(value: Any) -> bool:
    """Plain values, and containers of nothing else, whose text says all."""
    known = (*PLAIN, *CONTAINERS, tuple)
    return all(isinstance(inner, known) for _, inner in walk(value, set()))


def refusal(name: str, why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0811",
        f"`{name}` was changed after the model was parallelized",
        why=why,
        fix="change it before `parallelize`; keep what changes from step to step in a buffer or an argument",
    )
