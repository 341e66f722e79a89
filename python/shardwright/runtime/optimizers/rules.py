"""What a class of optimizers needs of the parameters that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...errors import RuntimeFault
from ..programs.program import Program, TensorInfo
from ..shards.held import elsewhere, split
from ..shards.shards import Shards
from .reach import Reach, reach_of


@dataclass
class Group:
    """`params` are this rank's, and may be none; `tensors` are the ids of all ranks' together."""

    params: list[Tensor]
    options: dict[str, Any]
    tensors: set[int]

    def as_torch(self) -> dict[str, Any]:
        return {**self.options, "params": self.params}


def require_right(program: Program, device: torch.device, shards: Shards, made: Optimizer) -> None:
    """Of one that PyTorch's constructor made over this rank's shards; no rank asks another."""
    tensors = {id(shard.data): shard.tensor.id for shard in shards.held}
    groups = []
    for group in made.param_groups:
        params = [parameter for parameter in group["params"] if id(parameter) in tensors]
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append(Group(params, options, {tensors[id(parameter)] for parameter in params}))
    Rules(program, device, type(made), made.defaults, elementwise=False).check(groups)


@dataclass(frozen=True)
class Rules:
    program: Program
    device: torch.device
    cls: Callable[..., Optimizer]
    options: Mapping[str, Any]
    elementwise: bool

    def check(self, groups: Sequence[Group]) -> None:
        """The same on all ranks, since all know what is in a group elsewhere."""
        if self.elementwise:
            return
        for group in groups:
            tensors = [self.program.tensors[number] for number in sorted(group.tensors)]
            if not split(self.program, tensors) and not elsewhere(self.program, tensors):
                continue
            reach = reach_of(self.cls, self.options, group.options, self.device)
            bad = split(self.program, tensors) if reach is not Reach.ELEMENT else []
            if reach is Reach.MODEL:
                bad += [tensor for tensor in elsewhere(self.program, tensors) if tensor not in bad]
            if bad:
                raise self._refusal(reach, bad)

    def _refusal(self, reach: Reach, bad: Sequence[TensorInfo]) -> RuntimeFault:
        name = getattr(self.cls, "__name__", repr(self.cls))
        names = ", ".join(repr(tensor.names[0]) for tensor in bad[:3])
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        return RuntimeFault(
            "SW0715",
            f"{name} does not work on parts of a tensor",
            why=f"its step looks at {reach.value}, and the plan divides {names}{more} among the ranks",
            fix="take an elementwise optimizer for these parameters, or a plan that does not divide them",
        )
