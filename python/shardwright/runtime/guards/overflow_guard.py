"""`torch.amp.GradScaler` looks for overflows in what one rank has: of a parallelized model all look together.

Else a rank would leave a step out that the others take, and go on with another scale.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ..communication.comm import Comm

# What every step of a scaler calls, also those with fused optimizers.
HELPER = "_unscale_grads_"

_watched: list[weakref.ref[nn.Module]] = []
# Of optimizers that may have no parameter on some rank.
_made: weakref.WeakKeyDictionary[Optimizer, Comm] = weakref.WeakKeyDictionary()


def find_overflows_together(model: nn.Module) -> None:
    """From now on what a scaler finds in gradients of this model is found on all ranks."""
    _watched.append(weakref.ref(model, _watched.remove))
    original = getattr(GradScaler, HELPER)
    if not hasattr(original, "shardwright"):
        setattr(GradScaler, HELPER, _agreeing(original))


def belongs_to(optimizer: Optimizer, comm: Comm) -> None:
    _made[optimizer] = comm


def _agreeing(original: Callable[..., Any]) -> Callable[..., Any]:
    def unscale(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        flags = original(scaler, optimizer, *args, **kwargs)
        for comm in _comms_of(optimizer):
            if comm.world > 1:
                flag = flags.setdefault(comm.device, torch.zeros((), device=comm.device))
                # Of what lives on the host it is told there.
                for other in flags.values():
                    flag.copy_(torch.maximum(flag, other.to(flag)))
                comm.all_reduce(flag.view(1), tuple(range(comm.world)), "max").wait()
        return flags

    unscale.shardwright = True  # type: ignore[attr-defined]
    return unscale


def _comms_of(optimizer: Optimizer) -> list[Comm]:
    """In the order in which the models were made, which is that of all ranks."""
    if optimizer in _made:
        return [_made[optimizer]]
    params = {id(param) for group in optimizer.param_groups for param in group["params"]}
    models: list[Any] = [model for reference in _watched if (model := reference()) is not None]
    return [model.comm for model in models if any(id(p) in params for p in model.parameters())]
