"""Where values come from, and where they go: files of weights, and initialisation piece by piece."""

from .common import of_one_model, one_generator, same_everywhere
from .deferring import deferred
from .values import Values, Weights, values_of

__all__ = ["Values", "Weights", "deferred", "of_one_model", "one_generator", "same_everywhere", "values_of"]
