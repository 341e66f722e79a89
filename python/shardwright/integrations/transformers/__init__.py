"""The `Trainer` of Transformers with a plan: same arguments, same losses, many devices.

`Trainer` is `transformers.Trainer` with `plan=`; `ParallelTrainer` makes the same of any class that is made
from it: `class SFT(ParallelTrainer, trl.SFTTrainer): pass`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...errors import RuntimeFault

if TYPE_CHECKING:
    from .trainer import ParallelTrainer, Trainer

__all__ = ["ParallelTrainer", "Trainer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        result = import_module(".trainer", __name__)
    except ModuleNotFoundError as error:
        raise RuntimeFault(
            "SW0839",
            f"{__name__}.{name} cannot be imported",
            why=f"{type(error).__name__}: {error}",
            fix="install what it is made from: pip install 'shardwright[transformers]'",
        ) from error
    return getattr(result, name)
