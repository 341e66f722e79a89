"""Rules that are found for calls of a model, and used without anybody having read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..capture.lines import said_by
from ..discovering import Discovered, discover_of
from ..discovering.trying import Trying
from ..errors import CaptureError
from .calls import Call


@dataclass
class Found:
    rule: str | None
    sizes: dict[str, str] = field(default_factory=dict)
    tried: int = 0
    """With how many sets of numbers."""
    why: str = ""
    """There is none."""


class Finding:
    """Calls of one kind are tried in full once; of others it is asked whether the same holds."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Found, Discovered | None]] = {}

    def rule_for(self, call: Call) -> Found:
        if call.unfit is not None:
            return Found(None, why=call.unfit)
        before = self._known.get(call.kind)
        try:
            if before is None:
                self._known[call.kind] = result = _find(call)
                return result[0]
            return before[0] if before[1] is None or _again(call, before[1]) else _find(call)[0]
        except CaptureError as error:
            result = Found(None, why=error.why or error.what), None
        except Exception as error:  # a copy, or a run, that a module does not take
            result = Found(None, why=f"it cannot be tried ({said_by(error)})"), None
        self._known.setdefault(call.kind, result)
        return result[0]


def _find(call: Call) -> tuple[Found, Discovered | None]:
    one = discover_of(call.subject())
    if not one.dims:
        why = one.refuted[0] if one.refuted else one.failed or "no dim of what it is given divides it"
        return Found(None, why=why), None
    return Found(one.rule, one.sizes, one.trials), one


def _again(call: Call, known: Discovered) -> bool:
    """Whether what holds for another call of its kind holds for it, too."""
    trying = Trying.from_subject(call.subject())
    for split, holds in known.held:
        if trying.holds(split) != holds or trying.untested(split, holds) is not None:
            return False
    once = sorted({at for _, holds in known.held for at in holds.once})
    return all(trying.is_linear(jointly, once) for jointly in known.linear)
