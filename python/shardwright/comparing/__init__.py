"""`sw.verify`: a compiled program, run on local ranks, beside the model: one step, tensor by tensor."""

from .face import verify
from .result import Comparison, Row

__all__ = ["Comparison", "Row", "verify"]
