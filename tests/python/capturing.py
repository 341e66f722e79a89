"""Models that tests capture again and again: once each, as a start from the cache knows them.

What most tests are of is what becomes of a capture. Folders whose tests are of capturing itself do without,
and so do files that say `CAPTURES_ANEW = True`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from shardwright.cache import key_of
from shardwright.capture import Captured
from shardwright.capture import capture as captured_anew
from shardwright.capture.static_inputs.buffers import has_values

# Rules have a model for each case, which are captured once as it is.
ANEW = ("as_python", "capture", "rules")


class CapturedOnce:
    """In the place of `capture`."""

    def __init__(self) -> None:
        self._made: dict[str, Captured] = {}

    def __call__(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        noted: Any = None,
        **asked: Any,
    ) -> Captured:
        key = None if noted is not None else _key(module, args, kwargs, asked)
        known = None if key is None else self._made.get(key)
        if known is not None and has_values(module, known.fixed):
            return _copy(known)
        made = captured_anew(module, args, kwargs, noted=noted, **asked)
        # Of inputs that are read in Python the key knows no values.
        if key is not None and not made.known_names:
            self._made[key] = _copy(made)
        return made


def _key(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, asked: Mapping[str, Any]
) -> str | None:
    # Such as `zoo.widened` has.
    modes = [type(mode) for mode in _get_current_function_mode_stack()]
    try:
        return key_of(module, args, kwargs, "", {**asked, "modes": modes})
    except Exception:
        # What cannot be described is captured anew, which says what is wrong with it.
        return None


def _copy(captured: Captured) -> Captured:
    """That may be changed: what is not frozen is another."""
    values = {field.name: getattr(captured, field.name) for field in fields(captured)}
    changing = {name: value.copy() for name, value in values.items() if isinstance(value, (dict, list))}
    changing["constants"] = {name: value.clone() for name, value in captured.constants.items()}
    return replace(captured, **changing)


@contextmanager
def captured_once(tests: ModuleType) -> Iterator[None]:
    """For the tests of a file."""
    if Path(str(tests.__file__)).parent.name in ANEW or getattr(tests, "CAPTURES_ANEW", False):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        once = CapturedOnce()
        # From its package it would go on to what is imported later, and stay there.
        package = sys.modules[captured_anew.__module__]
        for module in list(sys.modules.values()):
            if module is not package and getattr(module, "__dict__", {}).get("capture") is captured_anew:
                patch.setattr(module, "capture", once)
        yield
