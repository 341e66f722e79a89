"""The state dict of the single device's optimizer, made of what ranks hold, and given to them.

It is what PyTorch's own `state_dict()` gives there: by number, in the order of the groups. So frameworks that
write one file can write it, and a loop on one device reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..runtime.agreement.together import each
from ..runtime.optimizers.loading import misfit
from ..runtime.programs.boxes import Box
from ..runtime.programs.regions import cut, narrow, whole
from .folder import Chunk, Value
from .optimizers import Options, has_state_of_whole, load_state, options_of, stepped_whole
from .parts import Part, Parts, parts_of
from .saving import states_of

# By group the names of its parameters, in the order that they have on the single device.
Names = Sequence[Sequence[str]]
# What travels to rank 0 in one message, in elements of parameters.
_AT_ONCE = 1 << 24


def whole_optimizer_state(model: nn.Module, optimizer: Optimizer, names: Names) -> dict[str, Any]:
    """The whole state dict on rank 0, on the host, and `{}` on all others. All ranks must call this."""
    parts = parts_of(model)
    comm = parts.comm
    state: dict[str, dict[str, Any]] = {}
    for some in _batches(parts):
        mine = each(comm, partial(_pieces, parts, optimizer, some))
        for pieces in comm.gather_objects(mine) or []:
            for name, key, shape, box, value in pieces:
                _put(state.setdefault(name, {}), key, shape, box, value)
    if comm.rank != 0:
        return {}
    order = [name for group in names for name in group]
    numbers = {name: number for number, name in enumerate(order)}
    aliases = {alias: first for one in parts.wholes for alias in one.names for first in [one.names[0]]}
    packed = [
        {**options, "params": [numbers[name] for name in group]}
        for options, group in zip(options_of(optimizer), names, strict=True)
    ]
    numbered = {number: state[aliases[name]] for name, number in numbers.items() if aliases[name] in state}
    return {"state": numbered, "param_groups": packed}


def load_whole_optimizer_state(
    model: nn.Module, optimizer: Optimizer, names: Names, given: Mapping[str, Any]
) -> None:
    """Each rank takes its parts of the whole state dict. Nothing is changed where it does not fit."""
    parts = parts_of(model)
    groups = given["param_groups"]
    if [len(group["params"]) for group in groups] != [len(group) for group in names]:
        raise misfit(
            f"it has groups of {[len(group['params']) for group in groups]} parameters, and the optimizer"
            f" of {[len(group) for group in names]}"
        )
    keys = {
        name: key
        for group, order in zip(groups, names, strict=True)
        for name, key in zip(order, group["params"], strict=True)
    }
    used = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    states = {}
    for part in parts.mine:
        name = next((one for one in parts.wholes[part.whole].names if one in keys), None)
        if name is not None and id(part.data) in used:
            states[id(part.data)] = _own(parts, optimizer, part, given["state"].get(keys[name], {}))
    options: list[Options] = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in groups
    ]
    load_state(optimizer, options, states)


def _batches(parts: Parts) -> Iterator[set[int]]:
    """Numbers of tensors whose states travel together: the same on all ranks."""
    some: set[int] = set()
    elements = 0
    for number, one in enumerate(parts.wholes):
        some.add(number)
        elements += torch.Size(one.shape).numel()
        if elements >= _AT_ONCE:
            yield some
            some, elements = set(), 0
    if some:
        yield some


def _pieces(parts: Parts, optimizer: Optimizer, some: set[int]) -> list[tuple[Any, ...]]:
    """This rank's pieces of the states of some parameters: each element comes from one rank."""
    pieces: list[tuple[Any, ...]] = []
    for item in states_of(parts, optimizer, some):
        if isinstance(item, Value):
            _, _, name, key = item.place
            pieces.append((name, key, None, None, item.value))
        else:
            _, _, name, key = item.places[0]
            pieces.append((name, key, tuple(item.shape), item.box, _on_host(item)))
    return pieces


def _on_host(item: Chunk) -> Tensor:
    return item.tensor().detach().cpu().clone()


def _put(state: dict[str, Any], key: str, shape: Any, box: Box | None, value: Any) -> None:
    if box is None:
        state[key] = value
        return
    if key not in state:
        state[key] = torch.zeros(shape, dtype=value.dtype)
    intervals = [(low, low + size) for low, size in zip(box.offsets, box.sizes, strict=True)]
    narrow(state[key], intervals).copy_(value)


def _own(parts: Parts, optimizer: Optimizer, part: Part, state: Mapping[str, Any]) -> dict[str, Any]:
    factors = parts.wholes[part.whole].factors
    if stepped_whole(optimizer, part):
        return dict(map(_copied, state.items())) if has_state_of_whole(optimizer, part) else {}
    split = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and tuple(value.shape) == parts.wholes[part.whole].shape:
            value = cut(value.detach(), factors, part.region).clone().view(part.data.shape)
        elif isinstance(value, Tensor) and value.dim() and part.region != whole(factors):
            name = parts.wholes[part.whole].names[0]
            raise misfit(f"`{key}` of {name} has the shape {tuple(value.shape)}, and the plan shards {name}")
        split[key] = value
    return split


def _copied(item: tuple[str, Any]) -> tuple[str, Any]:
    key, value = item
    return key, value.detach().clone() if isinstance(value, Tensor) else value
