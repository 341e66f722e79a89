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

    def as_torch(self, shown: Callable[[list[Tensor]], list[Tensor]]) -> dict[str, Any]:
        return {**self.options, "params": shown(self.params)}


def require_right(program: Program, device: torch.device, shards: Shards, made: Optimizer) -> None:
    """Of one that PyTorch's constructor made over this rank's shards; no rank asks another."""
    tensors = {id(shard.data): shard.tensor.id for shard in shards.held}
    groups = []
    for group in made.param_groups:
        params = [parameter for parameter in group["params"] if id(parameter) in tensors]
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append(Group(params, options, {tensors[id(parameter)] for parameter in params}))
    rules = Rules(program, device, type(made), made.defaults, elementwise=False, whole_updates=False)
    rules.check(groups)


@dataclass(frozen=True)
class Rules:
    program: Program
    device: torch.device
    cls: Callable[..., Optimizer]
    options: Mapping[str, Any]
    elementwise: bool
    # Whether those can be stepped whole of which the plan wants that.
    whole_updates: bool = True

    def check(self, groups: Sequence[Group]) -> set[int]:
        """The tensors that are to be stepped whole; refuses what can be neither that nor stepped in parts.

        The same on all ranks, since all know what is in a group elsewhere.
        """
        if self.elementwise:
            return set()
        return set().union(*map(self._whole, groups))

    def _whole(self, group: Group) -> set[int]:
        tensors = [self.program.tensors[number] for number in sorted(group.tensors)]
        parts, absent = split(self.program, tensors), elsewhere(self.program, tensors)
        if not parts and not absent:
            return set()
        reach = reach_of(self.cls, self.options, group.options, self.device)
        if reach is Reach.ELEMENT:
            return set()
        if reach is Reach.MODEL and (parts or absent):
            raise self._refusal(reach, parts + [tensor for tensor in absent if tensor not in parts])
        bad = [tensor for tensor in parts if tensor.id not in self.program.updates]
        if bad or (parts and not self.whole_updates):
            raise self._refusal(reach, bad or parts)
        return {tensor.id for tensor in parts}

    def _refusal(self, reach: Reach, bad: Sequence[TensorInfo]) -> RuntimeFault:
        name = getattr(self.cls, "__name__", repr(self.cls))
        names = ", ".join(repr(tensor.names[0]) for tensor in bad[:3])
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        return RuntimeFault(
            "SW0715",
            f"{name} does not work on parts of a tensor",
            why=f"its step needs {reach.value}, and the plan shards {names}{more} among the ranks",
            fix=self._ways_out(reach, bad[0]),
        )

    def _ways_out(self, reach: Reach, tensor: TensorInfo) -> str:
        ways = "take an elementwise optimizer for these parameters, or a plan that does not shard them"
        if reach is Reach.MODEL:
            return ways
        if tensor.id in self.program.updates:
            return "the plan lets their updates be computed whole, for optimizers that `sw.optimizer` makes"
        return (
            'let the plan compute their updates whole, with " x whole-updates" behind its name or the line'
            f' `param "{tensor.names[0]}": update whole` in its file; or {ways}'
        )
