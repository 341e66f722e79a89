"""The operators of random models, by family. Each is a function that adds steps to a `Pool`."""

from . import contracting, extremes, indexing, pointwise, quiet, rarer, reducing, shaping, shared, spatial
from .registry import OPERATORS, Operator

__all__ = [
    "OPERATORS",
    "Operator",
    "contracting",
    "extremes",
    "indexing",
    "pointwise",
    "quiet",
    "rarer",
    "reducing",
    "shaping",
    "shared",
    "spatial",
]
