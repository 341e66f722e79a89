"""Checkpoints of training runs, in the format of torch.distributed.checkpoint and in original names.

Each rank writes its part, and reads the parts that it needs; the plan may be another one.
"""

from .behind import Saving
from .loading import load
from .saving import save

__all__ = ["Saving", "load", "save"]
