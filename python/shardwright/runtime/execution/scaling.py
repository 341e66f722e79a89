"""Loss scaling for float16: small gradients are kept, and steps with an overflow are left out.

Gradients are scaled from the start of a program's backward to where they reach the shards, so nobody
else sees them scaled. After an overflow anywhere, all ranks fill all their gradients with NaN: what is
added before the next step cannot hide it, and clipping sees it. An optimizer that is about to step finds
the NaN, and leaves these parameters and their state as they are.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...errors import RuntimeFault
from ...precision import Precision
from ..communication.comm import Comm
from ..guards.part_gradients import plain
from ..shards.shards import Shards

# Half of what float16 can hold at most: a loss that is float16 gets no larger gradient.
LARGEST_SEED = 2.0**15
LARGEST = 2.0**24
MARK = "_shardwright_scaling"

_hooked = threading.Lock()
_hooks: list[Any] = []


class LossScaling:
    """`scale` is the same on all ranks."""

    def __init__(self, precision: Precision, comm: Comm, shards: Shards):
        self.scale = precision.loss_scale
        self.growth_interval = precision.growth_interval
        # Since the scale has changed.
        self.good_steps = 0
        self._largest = LARGEST
        self._comm, self._shards = comm, shards
        for shard in shards.held:
            setattr(shard.data, MARK, self)
        with _hooked:
            if not _hooks:
                _hooks.append(register_optimizer_step_pre_hook(_leave_out))

    def copied(self, shards: Shards) -> LossScaling:
        scaling = copy.copy(self)
        scaling._shards = shards
        for shard in shards.held:
            setattr(shard.data, MARK, scaling)
        return scaling

    def scaled(self, seeds: Sequence[Tensor]) -> list[Tensor]:
        """What backward starts from."""
        if any(seed.dtype == torch.float16 for seed in seeds):
            self._largest = LARGEST_SEED
        return [seed * self.scale for seed in seeds]

    def after_backward(self, arrived: Mapping[int, Tensor]) -> None:
        """Agrees about an overflow, once the gradients are whole; all ranks call this.

        `arrived` are those that are yet to be added.
        """
        held = [shard.data for shard in self._shards.held]
        grads = [plain(data.grad) for data in held if data.grad is not None]
        grads += arrived.values()
        overflow = torch.zeros((), device=self._comm.device)
        for grad in grads:
            overflow = overflow.maximum((~grad.isfinite()).any().to(overflow))
        if self._comm.world > 1:
            self._comm.all_reduce(overflow, tuple(range(self._comm.world)), "max").wait()
        if overflow.item():
            for grad in grads:
                grad.fill_(torch.nan)
            self.scale, self.good_steps = max(self.scale / 2, 2.0**-24), 0
            return
        self.good_steps += 1
        if self.good_steps >= self.growth_interval:
            self.scale, self.good_steps = max(self.scale, min(self.scale * 2, self._largest)), 0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scale, self.good_steps = float(state["scale"]), int(state["good_steps"])


def _leave_out(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Without gradients, every optimizer leaves a parameter and its state as they are."""
    of_scaling: dict[int, list[Tensor]] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            scaling = getattr(param, MARK, None)
            if scaling is not None:
                of_scaling.setdefault(id(scaling), []).append(param)
    if of_scaling and (any(arg is not None for arg in args[1:]) or kwargs.get("closure") is not None):
        raise RuntimeFault(
            "SW0766",
            "a step with a closure cannot be skipped after an overflow",
            why="with float16 a step is skipped if a gradient is not finite, unknown before the closure",
            fix='run backward before the step, or take precision="bf16"',
        )
    for params in of_scaling.values():
        _leave_out_together(params)


def _leave_out_together(params: Sequence[Tensor]) -> None:
    first = next((p.grad for p in params if p.grad is not None and p.grad.numel()), None)
    if first is not None and bool(first.flatten()[0].isnan()):
        for param in params:
            param.grad = None
