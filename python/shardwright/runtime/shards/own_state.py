"""State that is one rank's alone: it goes where it came from, and not into a file under the model's names."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer

from ...errors import RuntimeFault
from ..programs.program import Program, TensorInfo
from .held import elsewhere, split
from .shards import Shards

_asking = threading.local()
# Optimizers whose state dicts say that they hold parts.
_kept: weakref.WeakSet[Optimizer] = weakref.WeakSet()


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


def parts_known() -> bool:
    return bool(getattr(_asking, "knows", False))


def require_whole(program: Program, tensors: Sequence[TensorInfo]) -> None:
    """Refuses a state dict of parts of these."""
    if split(program, tensors) or elsewhere(program, tensors):
        raise refusal("a state dict")


def keep_parameters_here(shards: Shards) -> None:
    """They are in no pickle under the model's names, even where this rank has them whole: it has not all."""
    if is_divided(shards.program):
        for shard in shards.held:
            if shard.tensor.kind == "param":
                shard.data.__dict__[_OWN] = _Own(shard.tensor.names[0])


_OWN = "_shardwright_own"


class _Own:
    """Among the attributes of a parameter, which are pickled with it."""

    def __init__(self, name: str):
        self._name = name

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise refusal(f"`{self._name}`")


def is_divided(program: Program) -> bool:
    """Whether some rank has less than the whole model."""
    saved = program.saved_tensors()
    return bool(split(program, saved) or elsewhere(program, saved))


def keep_state_here(model: nn.Module, optimizer: Optimizer) -> None:
    if is_divided(model.program) and optimizer not in _kept:  # type: ignore[arg-type]
        optimizer.register_state_dict_post_hook(_own)
        _kept.add(optimizer)


def refusal(what: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0800",
        f"{what} is saved from one rank's shards",
        why="the plan shards the model: under the model's names a rank has shards",
        fix="save the training run with `sw.save(model, optimizer, path)`, or the weights with"
        " `full = model.full_state_dict(rank0_only=True, cpu=True)` on every rank and"
        " `torch.save(full, path)` on rank 0",
    )


def _own(_: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    return OwnState(state)
