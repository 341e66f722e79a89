"""A few steps with an emitted program on local ranks, and the same on one device."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .api import parallelize
from .errors import RuntimeFault
from .runtime import Comm, launch, optimizer, run_local
from .runtime.execution.inputs import Arguments
from .start.edited_program import Edited

RATE = 1e-3
# By how much losses may differ, relative to themselves, where sums are only in another order.
_LIMITS = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE = 5e-2


@dataclass(frozen=True)
class Losses:
    model: str
    plan: str
    world: int
    one_device: list[float]
    ranks: list[float]
    worst: float
    """The largest difference, relative to the loss."""
    equal: bool | None
    """Unknown where both sides draw numbers of their own."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def losses_of(
    module: nn.Module,
    example: Arguments,
    edited: Edited,
    steps: int,
    *,
    processes: bool,
    **options: Any,
) -> Losses:
    """`options` are those of `parallelize` with which the program was made."""
    given = (module, example, edited.folder, steps, options)
    if processes:
        ours, draws = launch(_in_process, devices=edited.world, args=given, device="cpu")
    else:
        ours, draws = run_local(edited.world, lambda rank, comm: _train(comm, *given))[0]
    theirs = _single(copy.deepcopy(module), example, steps)
    worst = max(abs(a - b) / max(abs(a), 1e-30) for a, b in zip(theirs, ours, strict=True))
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    equal = None if draws else worst <= _LIMITS.get(dtype, _COARSE)
    return Losses(type(module).__name__, edited.plan, edited.world, theirs, ours, worst, equal)


def _in_process(
    rank: int, module: nn.Module, example: Arguments, folder: str, steps: int, options: dict[str, Any]
) -> tuple[list[float], bool]:
    return _train(None, module, example, folder, steps, options)


def _train(
    comm: Comm | None,
    module: nn.Module,
    example: Arguments,
    folder: str,
    steps: int,
    options: dict[str, Any],
) -> tuple[list[float], bool]:
    """The losses, and whether the program draws random numbers."""
    args, kwargs = example
    model = parallelize(module, args, kwargs, program=folder, comm=comm, progress=False, **options)
    adamw = optimizer(model, torch.optim.AdamW, lr=RATE)
    losses = []
    for _ in range(steps):
        loss = model.train_step(kwargs if kwargs and not args else tuple(args))
        if model.program.goes_on:
            loss = model.finish()
        adamw.step()
        adamw.zero_grad()
        losses.append(_number(loss))
    return losses, bool(model.program.random)


def _single(module: nn.Module, example: Arguments, steps: int) -> list[float]:
    args, kwargs = example
    adamw = torch.optim.AdamW(module.parameters(), lr=RATE)
    losses = []
    for _ in range(steps):
        results = pytree.tree_leaves(module(*args, **kwargs))
        loss = next((x for x in results if isinstance(x, Tensor) and x.numel() == 1), None)
        number = _number(loss)
        assert loss is not None
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        losses.append(number)
    return losses


def _number(loss: Tensor | None) -> float:
    if loss is None:
        raise RuntimeFault(
            "SW0892",
            "the model gives no loss, so no step can be made with it here",
            why="a step goes back from one number that the model returns",
            fix="compute the loss in `forward`, or write the loop yourself, with"
            " `sw.parallelize(model, example, program=FOLDER)`",
        )
    return float(loss.detach())
