"""Where values come from, and where they go: files of weights, and initialisation piece by piece."""

from .deferring import deferred
from .values import Values, Weights, values_of

__all__ = ["Values", "Weights", "deferred", "values_of"]
