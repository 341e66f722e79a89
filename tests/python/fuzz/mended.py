"""Programs that once went wrong, each under the plan that showed it: they hold now."""

from __future__ import annotations

from typing import NamedTuple


class Mended(NamedTuple):
    name: str
    source: str
    plan: str
    """A name, or the text of a plan file."""
    devices: int
    outputs: str = "loss"


MENDED: list[Mended] = []
