"""An optimizer's state that is on the host between steps, as the plan says of its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from ..module import ParallelModule


def bring(model: ParallelModule, optimizer: Optimizer) -> None:
    """Before a step."""
    host = model.worker.host
    for state, key, x in _states(model, optimizer):
        if host.has(x):
            state[key] = host.bring(x)


def send(model: ParallelModule, optimizer: Optimizer) -> None:
    """After it. Whoever reads the state now reads what is there."""
    host = model.worker.host
    for state, key, x in _states(model, optimizer):
        if not host.has(x) and x.device == host.device and _is_dense(x):
            state[key] = host.keep(x)
    host.settle()


def _states(model: ParallelModule, optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """What is kept of each parameter; a number stays where the optimizer has it."""
    away = model.program.state_on_host
    for shard in model.shards.held:
        state = optimizer.state.get(shard.data) if shard.tensor.id in away else None
        for key, x in list((state or {}).items()):
            if isinstance(x, Tensor) and x.dim() > 0:
                yield state, key, x  # type: ignore[misc]


def _is_dense(x: Tensor) -> bool:
    return 0 < x.untyped_storage().nbytes() == x.numel() * x.element_size()
