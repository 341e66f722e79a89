"""Models that the tests of a file capture again and again: once each, as a start from the cache knows them.

What a file tests is then what becomes of a capture. Tests of capturing itself do without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from shardwright.cache import Unknown, key_of
from shardwright.capture import Captured
from shardwright.start import starter


class CapturedOnce:
    def __init__(self) -> None:
        self._capture = starter.captured_model
        self._made: dict[str, Captured] = {}

    def __call__(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, **asked: Any
    ) -> Captured:
        options = {name: value for name, value in asked.items() if name != "noted"}
        try:
            key = key_of(module, args, kwargs, "", options)
        except (Unknown, RecursionError):
            return self._capture(module, args, kwargs, **asked)
        if key not in self._made or self._made[key].in_spec.reading is not None:
            self._made[key] = self._capture(module, args, kwargs, **asked)
        made = self._made[key]
        return replace(made, constants=dict(made.constants), notes=list(made.notes))


@pytest.fixture(scope="module", autouse=True)
def captured_once() -> Iterator[None]:
    """For a file that imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starter, "captured_model", CapturedOnce())
        yield
