"""A rank's end of a parallel model: an `nn.Module` like the model, with this rank's shards.

`parallel` makes it, and has what every module has. Its calls, steps and values are a file each, and `base`
has what these share.
"""

from .parallel import ParallelModule

__all__ = ["ParallelModule"]
