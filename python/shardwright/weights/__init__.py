"""Where values come from, and where they go: files of weights, and initialisation piece by piece."""

from .common import of_one_model, one_generator
from .deferring import deferred
from .values import Values, Weights, values_of

__all__ = ["Values", "Weights", "deferred", "of_one_model", "one_generator", "values_of"]
