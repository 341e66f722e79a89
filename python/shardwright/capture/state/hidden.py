"""What a model keeps in Python from one forward to the next: attributes, and containers in them.

The graph has none of it: buffers are all that it remembers. So what goes on changing is refused, and
what was changed once (a flag, a table that is made in the first forward) may not matter any more.
"""

from __future__ import annotations

import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ...errors import CaptureError
from ...support.object_contents import CONTAINERS, OWN, PLAIN, has_attributes, walk
from .. import lines


@dataclass(frozen=True)
class Place:
    """An attribute of a module."""

    path: str
    owner: nn.Module
    name: str


Kept = dict[Place, dict[str, Any]]


def kept_by(module: nn.Module) -> Kept:
    """Plain values by where they are; of a tensor how often it was changed in place."""
    kept: Kept = {}
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        for name in list(vars(part)):
            if name not in OWN:
                path = f"{prefix}.{name}" if prefix else name
                kept[Place(path, part, name)] = _values(vars(part)[name], seen)
    return kept


def changes(before: Kept, after: Kept) -> list[tuple[Place, str]]:
    """The attributes that differ, with what is to be said of each."""
    places = []
    for place, values in after.items():
        was = before.get(place, {})
        if was != values:
            where = next((at for at in {**was, **values} if was.get(at) != values.get(at)), "")
            places.append((place, where))
    return places


def containers(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with a copy of what it has now."""
    for _, inner in walk(value, set()):
        if isinstance(inner, CONTAINERS):
            yield inner, inner.copy()
        elif has_attributes(inner):
            yield vars(inner), dict(vars(inner))


def refill(container: Any, before: Any) -> None:
    """What was not changed is not written to: some containers refuse that."""
    if _is_same(container, before):
        return
    container.clear()
    container.extend(before) if isinstance(container, (list, deque)) else container.update(before)


def _is_same(container: Any, before: Any) -> bool:
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        inside = zip(container.items(), before.items(), strict=True)
        return all(key is other and value is now for (key, value), (other, now) in inside)
    if isinstance(container, (list, deque)):
        return all(map(operator.is_, container, before))
    return bool(container == before)


def kept_error(path: str, line: str | None) -> CaptureError:
    return CaptureError(
        "SW0137",
        f"the model keeps something from one forward to the next in `{path}`",
        place=line,
        why="the program has no Python attributes: the value would stay as in the first forward",
        fix="keep it in a buffer (`register_buffer`) and change that in place, or give it as an input",
    )


def changing_line(place: Place, run: Callable[[], object]) -> str | None:
    """The model's line after which the attribute is another, while `run` runs."""
    changed: list[str] = []
    last = [_now(place)]
    reached: dict[types.FrameType, int] = {}

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        if changed or not lines.is_the_models(frame):
            return None
        now = _now(place)
        if now != last[0] and frame in reached:
            changed.append(_line(frame, reached[frame]))
        last[0] = now
        reached[frame] = frame.f_lineno
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except Exception:
        return None
    finally:
        sys.settrace(before)
    return lines.with_source(changed[0]) if changed else None


def _line(frame: types.FrameType, number: int) -> str:
    return f'File "{frame.f_code.co_filename}", line {number}, in {frame.f_code.co_name}'


def _now(place: Place) -> Any:
    value = vars(place.owner).get(place.name)
    return _values(value, set()), [id(tensor) for tensor in tensors_in(value)]


def tensors_in(value: Any) -> list[Tensor]:
    return [inner for _, inner in walk(value, set()) if isinstance(inner, Tensor)]


def _values(value: Any, seen: set[int]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for path, inner in walk(value, seen):
        if isinstance(inner, PLAIN):
            members[path] = (type(inner), inner if inner == inner else "nan")
        elif isinstance(inner, Tensor):
            members[path] = ("a tensor", inner._version)
        elif isinstance(inner, (*CONTAINERS, tuple)):
            members[path] = (type(inner), _length(inner))
    return members


def _length(value: Any) -> int:
    """As the container that it is has it: a class of the model's own may refuse to say."""
    kind = next(kind for kind in (*CONTAINERS, tuple) if isinstance(value, kind))
    return int(kind.__len__(value))
