"""State that is one rank's alone: it goes where it came from, and not into a file under the model's names."""

from __future__ import annotations

import copy
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer

from ..errors import RuntimeFault
from .held import elsewhere, split
from .program import Program


class OwnState(dict[str, Any]):
    """An optimizer's state over parts. A copy in memory is as good as the original; a file is not."""

    def __deepcopy__(self, memo: Any) -> OwnState:
        return OwnState(copy.deepcopy(dict(self), memo))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise refusal("the optimizer's state")


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
