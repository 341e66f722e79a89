"""One forward of a rank's program, and its backward: the `run` of emitted code.

The methods are described in `docs/reference/emitted-program.md`. Between calls, values are detached tensors
whose `requires_grad` says whether a gradient is needed. Each kind of methods is a file: `calls`, `messages`,
what is `gathered`, `gradients`. `run` begins and ends blocks and steps.
"""

from .executing import current_run
from .run import Run, begin, no_numbers, without_backward
from .state import Issued

__all__ = ["Issued", "Run", "begin", "current_run", "no_numbers", "without_backward"]
