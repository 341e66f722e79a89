"""The state of the single device's optimizer, given to one that steps parts: each rank takes its own of it.

`load_state_dict` of PyTorch goes by position, and takes whatever it finds there. Here the positions are those
of the single device: the group's parameters in the model's order, or the names that the state has. A state of
its parameter's shape is divided as the parameter is; a number is one for all parts. Nothing else can be
divided, and it is refused before anything is loaded. An optimizer's own `state_dict()`, which says that it
holds parts, is loaded as it is.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ...errors import RuntimeFault
from ..programs.program import TensorInfo
from ..programs.regions import cut, whole
from ..shards.held import elsewhere
from ..shards.own_state import OwnState, is_divided
from ..shards.shards import Shard
from .rules import Group
from .wholes import wholes_of

if TYPE_CHECKING:
    from ..module import ParallelModule

Models = Callable[[Optimizer], Sequence["ParallelModule"]]
# Of optimizers that `sw.optimizer` has made: their models, and what is in a group also on other ranks.
_made: weakref.WeakKeyDictionary[Optimizer, tuple[weakref.ref[ParallelModule], Sequence[Group]]] = (
    weakref.WeakKeyDictionary()
)


def know_groups(optimizer: Optimizer, model: ParallelModule, groups: Sequence[Group]) -> None:
    _made[optimizer] = weakref.ref(model), groups


def divide_what_is_loaded(models: Models) -> None:
    """From now on, for all optimizers over parts of `models`, however they were made."""
    original = Optimizer.load_state_dict
    if hasattr(original, "shardwright"):
        return

    @functools.wraps(original)
    def load_state_dict(optimizer: Optimizer, state_dict: Any) -> None:
        original(optimizer, _divided(optimizer, state_dict, models))

    load_state_dict.shardwright = True  # type: ignore[attr-defined]
    Optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign, assignment]


def _divided(optimizer: Optimizer, given: Any, models: Models) -> Any:
    candidates = [model] if optimizer in _made and (model := _made[optimizer][0]()) else models(optimizer)
    divided = [model for model in candidates if is_divided(model.program)]
    if not divided or isinstance(given, OwnState) or not isinstance(given, Mapping):
        return given
    if not {"state", "param_groups"} <= given.keys():
        raise misfit("it has no `state` and `param_groups`")
    if not given["state"] and _sizes(given["param_groups"]) == _sizes(optimizer.param_groups):
        return given  # options alone, such as those of an optimizer that has not stepped
    shards = {id(shard.data): shard for shard in divided[0].shards.held}
    if any(id(p) not in shards for group in optimizer.param_groups for p in group["params"]):
        raise misfit("the optimizer has parameters of several models, or of modules around one")
    return _Whole(optimizer, divided[0], shards).parts_of(given)


def _sizes(groups: Iterable[Mapping[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


class _Whole:
    """The single device's state, read for one rank's optimizer."""

    def __init__(self, optimizer: Optimizer, model: ParallelModule, shards: Mapping[int, Shard]):
        self._optimizer, self._own, self._program = optimizer, shards, model.program
        self._wholes = wholes_of(optimizer)

    def parts_of(self, given: Mapping[str, Any]) -> OwnState:
        ours, theirs = self._optimizer.param_groups, given["param_groups"]
        if len(ours) != len(theirs):
            raise misfit(f"it has {len(theirs)} parameter groups, and the optimizer {len(ours)}")
        state: dict[int, Any] = {}
        packed = []
        for at, (group, other) in enumerate(zip(ours, theirs, strict=True)):
            positions = {tensor.id: key for tensor, key in self._positions(at, group, other)}
            numbers = []
            for parameter in group["params"]:
                number = len(state)
                key = positions.get(self._own[id(parameter)].tensor.id)
                state[number] = self._part(parameter, given["state"].get(key, {}))
                numbers.append(number)
            kept = {key: value for key, value in other.items() if key not in ("params", "param_names")}
            names = {"param_names": group["param_names"]} if "param_names" in group else {}
            packed.append({**kept, **names, "params": numbers})
        return OwnState({"state": {at: one for at, one in state.items() if one}, "param_groups": packed})

    def _positions(
        self, at: int, group: Mapping[str, Any], other: Mapping[str, Any]
    ) -> list[tuple[TensorInfo, Any]]:
        """The tensors of a group, on all ranks, and under which key the state has each."""
        keys, inside = other["params"], self._tensors(at)
        names = other.get("param_names")
        if names is not None:
            known = {name: tensor for tensor in inside for name in tensor.names}
            unknown = [name for name in names if name not in known]
            if unknown or len(keys) != len(inside):
                raise misfit(f"group {at} has {len(keys)} parameters, {_some(unknown or names)} among them")
            return [(known[name], key) for name, key in zip(names, keys, strict=True)]
        self._require_order(at, group)
        for tensors in (inside, self._everything(at), [t for t in inside if not t.frozen]):
            if len(tensors) == len(keys):
                return list(zip(tensors, keys, strict=True))
        raise misfit(f"group {at} has {len(keys)} parameters, and that of the optimizer {len(inside)}")

    def _tensors(self, at: int) -> list[TensorInfo]:
        parameters = [tensor for tensor in self._program.parameters() if tensor.steppable]
        groups = self._optimizer.param_groups
        if self._optimizer in _made:
            known = _made[self._optimizer][1][at].tensors
            return [tensor for tensor in parameters if tensor.id in known]
        if elsewhere(self._program, parameters):
            # What this rank has nothing of is in a group all the same, and with one there is no question.
            here = {shard.tensor.id for shard in self._own.values()}
            inside = {self._own[id(p)].tensor.id for group in groups for p in group["params"]}
            if len(groups) > 1 or any(t.id in here and t.id not in inside for t in parameters):
                raise misfit("it is not known which group has the parameters that only other ranks hold")
            return parameters
        inside = {self._own[id(p)].tensor.id for p in groups[at]["params"]}
        return [tensor for tensor in parameters if tensor.id in inside]

    def _everything(self, at: int) -> list[TensorInfo]:
        """`model.parameters()`, among which may be numbers that nobody steps."""
        return self._program.parameters() if len(self._optimizer.param_groups) == 1 else []

    def _require_order(self, at: int, group: Mapping[str, Any]) -> None:
        order = {tensor.id: number for number, tensor in enumerate(self._program.parameters())}
        ours = [order[self._own[id(p)].tensor.id] for p in group["params"]]
        if ours != sorted(ours):
            raise misfit(f"group {at} is in another order than the model's, and the state has no names")

    def _part(self, parameter: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        shard = self._own[id(parameter)]
        if self._wholes is not None and self._wholes.has(parameter):
            owns = self._wholes.has_state_at(parameter)
            return {key: _copied(value) for key, value in state.items()} if owns else {}
        if shard.region == whole(shard.tensor.factors):
            return {key: _copied(value) for key, value in state.items()}
        return {key: _part(shard, key, value) for key, value in state.items()}


def _part(shard: Shard, key: str, value: Any) -> Any:
    tensor = shard.tensor
    if isinstance(value, Tensor) and tuple(value.shape) == tensor.shape:
        return cut(value.detach(), tensor.factors, shard.region).clone().view(shard.data.shape)
    for inner in pytree.tree_leaves(value):
        if isinstance(inner, Tensor) and inner.dim():
            raise misfit(
                f"`{key}` of {tensor.names[0]} has the shape {tuple(inner.shape)}, the parameter"
                f" {tensor.shape}, and the plan shards it"
            )
    return _copied(value)


def _copied(value: Any) -> Any:
    """Steps write into it, and two parts of a parameter on one rank are stepped both."""
    return pytree.tree_map_only(Tensor, lambda x: torch.clone(x.detach()), value)


def misfit(why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0754",
        "the optimizer's state does not fit this optimizer, which steps parts of the model's parameters",
        why=f"{why}; nothing was loaded",
        fix="load the `state_dict()` of the single device's optimizer over the same parameter groups, best of"
        " one made from `named_parameters()`; `sw.save` saves training runs that any plan can load",
    )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
