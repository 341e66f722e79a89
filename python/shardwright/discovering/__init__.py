"""Rules that are found by trying: `shardwright ops discover`.

A function runs on parts of its tensors. Which way of putting together what the parts give is the whole,
values and gradients, says how it may be split; what is not seen to hold in all trials stays whole. Which
parts are tried, and what rule that makes, the compiler says.
"""

from __future__ import annotations

from .discover import Discovered, FoundDim, discover, discover_of, discover_or_why
from .examples import Example, examples, has_no_rule
from .subject import Subject

__all__ = [
    "Discovered",
    "Example",
    "FoundDim",
    "Subject",
    "discover",
    "discover_of",
    "discover_or_why",
    "examples",
    "has_no_rule",
]
