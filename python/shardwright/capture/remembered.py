"""What a model keeps in Python from one forward to the next: attributes, and containers in them.

The graph has none of it: buffers are all that it remembers. So what goes on changing is refused, and
what was changed once (a flag, a table that is made in the first forward) may not matter any more.
"""

from __future__ import annotations

import sys
import types
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import CaptureError
from . import lines

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, dict, set, deque)
_NOT_THE_MODELS = sys.stdlib_module_names - {"__main__"} | {"torch", "numpy"}
_OWN = frozenset(vars(nn.Module()))
# Deeper than this nobody keeps the state of a forward.
_DEEPEST = 6


@dataclass(frozen=True)
class Place:
    """An attribute of a module."""

    path: str
    owner: nn.Module
    name: str


Kept = dict[Place, dict[str, Any]]


def kept_by(module: nn.Module) -> Kept:
    """Plain values by where they are; of a tensor how often it was changed in place."""
    found: Kept = {}
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        for name in list(vars(part)):
            if name not in _OWN:
                path = f"{prefix}.{name}" if prefix else name
                found[Place(path, part, name)] = _values(vars(part)[name], seen)
    return found


def changes(before: Kept, after: Kept) -> list[tuple[Place, str]]:
    """The attributes that differ, with what is to be said of each."""
    found = []
    for place, values in after.items():
        was = before.get(place, {})
        if was != values:
            where = next((at for at in {**was, **values} if was.get(at) != values.get(at)), "")
            found.append((place, where))
    return found


def containers(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with a copy of what it has now."""
    for _, inner in _walk(value, set()):
        if isinstance(inner, _CONTAINERS):
            yield inner, inner.copy()
        elif _has_attributes(inner):
            yield vars(inner), dict(vars(inner))


def refill(container: Any, before: Any) -> None:
    container.clear()
    container.extend(before) if isinstance(container, (list, deque)) else container.update(before)


def kept_error(path: str, line: str | None) -> CaptureError:
    return CaptureError(
        "SW0137",
        f"the model keeps something from one forward to the next in `{path}`",
        place=line,
        why="the program has no attributes of Python: it would stay as it was in the first forward",
        fix="keep it in a buffer (`register_buffer`) and change that in place, or give it as an input",
    )


def changing_line(place: Place, run: Callable[[], object]) -> str | None:
    """The model's line after which the attribute is another, while `run` runs."""
    found: list[str] = []
    last = [_now(place)]
    reached: dict[types.FrameType, int] = {}

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        if found or not lines.is_the_models(frame):
            return None
        now = _now(place)
        if now != last[0] and frame in reached:
            found.append(_line(frame, reached[frame]))
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
    return lines.with_source(found[0]) if found else None


def _line(frame: types.FrameType, number: int) -> str:
    return f'File "{frame.f_code.co_filename}", line {number}, in {frame.f_code.co_name}'


def _now(place: Place) -> Any:
    value = vars(place.owner).get(place.name)
    return _values(value, set()), [id(tensor) for tensor in tensors_in(value)]


def tensors_in(value: Any) -> list[Tensor]:
    return [inner for _, inner in _walk(value, set()) if isinstance(inner, Tensor)]


def _values(value: Any, seen: set[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, inner in _walk(value, seen):
        if isinstance(inner, _PLAIN):
            found[path] = (type(inner), inner if inner == inner else "nan")
        elif isinstance(inner, Tensor):
            found[path] = ("a tensor", inner._version)
        elif isinstance(inner, (*_CONTAINERS, tuple)):
            found[path] = (type(inner), len(inner))
    return found


def _walk(value: Any, seen: set[int], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A value and all that is in it, each with how to get there; nothing that was seen before."""
    yield path, value
    if depth == _DEEPEST or isinstance(value, _PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    for step, inner in _inside(value):
        yield from _walk(inner, seen, path + step, depth + 1)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in list(value.items()))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{at}]", inner) for at, inner in enumerate(list(value)))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{{{inner!r}}}", inner) for inner in list(value) if isinstance(inner, _PLAIN))
    elif _has_attributes(value):
        yield from ((f".{name}", inner) for name, inner in list(vars(value).items()))


def _has_attributes(value: Any) -> bool:
    """An object of the model's own: no module, class, function, tensor or part of PyTorch."""
    if isinstance(value, (nn.Module, Tensor, type, types.ModuleType, *_CONTAINERS, tuple, Mapping)):
        return False
    if isinstance(value, (types.SimpleNamespace, Namespace)):
        return True
    home = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and not callable(value) and home not in _NOT_THE_MODELS
