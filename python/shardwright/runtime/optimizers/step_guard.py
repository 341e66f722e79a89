"""What an optimizer is about to step, looked at before it steps: PyTorch calls here for each of them.

Two mistakes train something else without a word. An optimizer over the parameters of the module that was
parallelized steps tensors that no program reads. One that PyTorch's own constructor made over the parts
of this rank may look at whole tensors, which `sw.optimizer` finds out for those that it makes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...errors import RuntimeFault
from ..guards import part_gradients
from ..shards.own_state import keep_state_here
from . import on_host
from .loading import divide_what_is_loaded
from .rules import require_right

if TYPE_CHECKING:
    from ..module import ParallelModule

_lock = threading.Lock()
_hooks: list[Any] = []
# By the id of a parameter that is not trained, what it is and which model is.
_originals: dict[int, tuple[weakref.ref[nn.Parameter], weakref.ref[nn.Module], str]] = {}
_models: list[weakref.ref[ParallelModule]] = []
# How many parameters each optimizer had when it was found to be right.
_right: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()


def guard_steps(model: ParallelModule) -> None:
    """From now on optimizers over this rank's parameters are looked at."""
    with _lock:
        if not _hooks:
            _hooks.append(register_optimizer_step_pre_hook(_before))
            _hooks.append(register_optimizer_step_post_hook(_after))
            divide_what_is_loaded(_stepped)
        _models.append(weakref.ref(model, _models.remove))


def guard_originals(model: ParallelModule, module: nn.Module) -> None:
    """And those over the parameters of the module that was parallelized."""
    for name, parameter in module.named_parameters():
        number = id(parameter)
        gone = weakref.ref(parameter, partial(_forget, number))
        _originals[number] = gone, weakref.ref(model), name


def _forget(number: int, _: Any) -> None:
    _originals.pop(number, None)


def trust(optimizer: Optimizer) -> None:
    """It was made by `sw.optimizer`, which has looked at it."""
    _right[optimizer] = _count(optimizer)


def _before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if _right.get(optimizer) != _count(optimizer):
        _refuse_originals(optimizer)
        for model in _stepped(optimizer):
            _require_right(model, optimizer)
            keep_state_here(model, optimizer)
            model.stepping.add(optimizer, alike=False)
        if all(id(p) not in _originals for p in _parameters(optimizer)):
            _right[optimizer] = _count(optimizer)
    part_gradients.lend(_parameters(optimizer))
    for model in _stepped(optimizer):
        on_host.bring(model, optimizer)


def _after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    part_gradients.take_back(_parameters(optimizer))
    for model in _stepped(optimizer):
        on_host.send(model, optimizer)


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _count(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _stepped(optimizer: Optimizer) -> list[ParallelModule]:
    ours = {id(parameter) for parameter in _parameters(optimizer)}
    models = [model for reference in list(_models) if (model := reference()) is not None]
    return [model for model in models if any(id(shard.data) in ours for shard in model.shards.held)]


def _refuse_originals(optimizer: Optimizer) -> None:
    """One that has gradients is trained for itself, beside the parallel model."""
    of_models: dict[int, list[tuple[Tensor, str]]] = {}
    for parameter in _parameters(optimizer):
        original = _originals.get(id(parameter))
        if original is not None and original[0]() is parameter and original[1]() is not None:
            of_models.setdefault(id(original[1]()), []).append((parameter, original[2]))
    for parameters in of_models.values():
        if all(parameter.grad is None for parameter, _ in parameters):
            raise RuntimeFault(
                "SW0801",
                "the optimizer has the parameters of the module that was parallelized, which nobody trains",
                why=f"{parameters[0][1]!r} and {len(parameters) - 1} more are not the parallel model's, and"
                " have no gradients",
                fix="make it from the parallel model: `optimizer = sw.optimizer(model, torch.optim."
                f"{type(optimizer).__name__}, ...)`",
            )


def _require_right(model: ParallelModule, optimizer: Optimizer) -> None:
    try:
        require_right(model.program, model.comm.device, model.shards, optimizer)
    except RuntimeFault as error:
        raise RuntimeFault(
            error.code,
            error.what,
            why=error.why,
            fix=f"{error.fix}; `sw.optimizer(model, torch.optim.{type(optimizer).__name__}, ...)` looks at it"
            " before training begins",
        ) from error
