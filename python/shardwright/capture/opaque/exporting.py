"""What a model is told that asks whether it is exported.

Some take another way then, and give their parts other arguments, such as a mask that is `None` else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_FLAGS = ("_is_compiling_flag", "_is_exporting_flag")


@contextmanager
def exporting(says: bool) -> Iterator[None]:
    kept = {name: getattr(torch.compiler, name) for name in _FLAGS}
    for name in _FLAGS:
        setattr(torch.compiler, name, says)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(torch.compiler, name, value)
