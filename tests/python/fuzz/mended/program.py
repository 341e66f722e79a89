"""A program that once went wrong."""

from __future__ import annotations

from typing import NamedTuple


class Mended(NamedTuple):
    name: str
    source: str
    plan: str
    """A name, or the text of a plan file."""
    devices: int
    outputs: str = "loss"
    batches: int = 0
    """Micro-batches of a step."""
