"""State that is one rank's alone: it goes where it came from, and not into a file under the model's names."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer

from ...errors import RuntimeFault
from ..programs.program import Program
from .held import elsewhere, split

_asking = threading.local()


class OwnState(dict[str, Any]):
    """An optimizer's state over parts. A copy in memory is as good as the original; a file is not."""

    def __deepcopy__(self, memo: Any) -> OwnState:
        return OwnState(copy.deepcopy(dict(self), memo))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise refusal("the optimizer's state")


@contextmanager
def parts_are_known() -> Iterator[None]:
    """For who knows that a state dict holds parts, and does not keep it."""
    before = getattr(_asking, "knows", False)
    _asking.knows = True
    try:
        yield
    finally:
        _asking.knows = before


def require_whole(program: Program) -> bool:
    """Refuses a state dict of parts; whether it is the single device's."""
    if not is_divided(program):
        return True
    if getattr(_asking, "knows", False):
        return False
    raise refusal("a state dict")


def is_divided(program: Program) -> bool:
    """Whether some rank has less than the whole model."""
    saved = program.saved_tensors()
    return bool(split(program, saved) or elsewhere(program, saved))


def keep_state_here(model: nn.Module, optimizer: Optimizer) -> None:
    if is_divided(model.program):  # type: ignore[arg-type]
        optimizer.register_state_dict_post_hook(_own)


def refusal(what: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0800",
        f"{what} is saved from one rank's parts",
        why="the plan divides the model: what a rank has under the model's names are parts",
        fix="save the training run with `sw.save(model, optimizer, path)`, or the weights with"
        " `full = model.full_state_dict()` on every rank and `torch.save(full, path)` on one",
    )


def _own(_: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    return OwnState(state)
