"""The state of an optimizer by the single-device model's names, from and to the parts of a rank.

A state of the shape of its parameter is split as the parameter is. Any other (a step count, the
factors of a matrix that is whole) is one value for the parameter. All are one value of a parameter that
ranks hold in parts and one of them steps whole; they are that rank's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import RuntimeFault
from ..runtime.optimizers.wholes import wholes_of
from ..runtime.programs.regions import whole
from ..runtime.shards.own_state import OwnState
from .parts import Part, Parts

Options = dict[str, Any]


def groups_of(parts: Parts, optimizer: Optimizer) -> list[list[int]]:
    """For each parameter group the numbers of the tensors of which this rank has parts in it."""
    by_data = parts.by_data()
    groups: list[list[int]] = []
    for at, group in enumerate(optimizer.param_groups):
        strange = [p for p in group["params"] if id(p) not in by_data]
        if strange:
            raise RuntimeFault(
                "SW0744",
                f"group {at} of the optimizer has a parameter that is not the model's",
                why=f"of shape {tuple(strange[0].shape)}; {len(strange)} of {len(group['params'])} are none",
                fix="give the optimizer that was made for this model",
            )
        groups.append(list(dict.fromkeys(by_data[id(p)].whole for p in group["params"])))
    return groups


def merged(ranks: Sequence[list[list[int]]]) -> list[list[int]]:
    """The groups of all ranks together: a rank may have no part of a parameter."""
    if len({len(groups) for groups in ranks}) > 1:
        counts = ", ".join(str(len(groups)) for groups in ranks)
        raise RuntimeFault(
            "SW0744",
            "the ranks' optimizers have different numbers of parameter groups",
            why=f"by rank: {counts}",
            fix="make the same groups on every rank, by names",
        )
    return [sorted({number for group in column for number in group}) for column in zip(*ranks, strict=True)]


def options_of(optimizer: Optimizer) -> list[Options]:
    return [{key: value for key, value in g.items() if key != "params"} for g in optimizer.param_groups]


def stepped_whole(optimizer: Optimizer, part: Part) -> bool:
    """Whether a part's parameter is stepped whole, by some rank."""
    wholes = wholes_of(optimizer)
    return wholes is not None and wholes.has(part.data)


def has_state_of_whole(optimizer: Optimizer, part: Part) -> bool:
    """Whether that rank is this one, and its state of the whole parameter is at this part."""
    wholes = wholes_of(optimizer)
    return wholes is not None and wholes.has_state_at(part.data)


def split_state(parts: Parts, optimizer: Optimizer, part: Part) -> tuple[dict[str, Tensor], Options]:
    """The states of a part that are split as it is, and those that belong to the whole parameter."""
    split: dict[str, Tensor] = {}
    other: Options = {}
    for key, value in optimizer.state.get(part.data, {}).items():
        if isinstance(value, Tensor) and value.shape == part.data.shape:
            split[key] = value
        elif (
            isinstance(value, Tensor)
            and value.dim()
            and part.region != whole(parts.wholes[part.whole].factors)
        ):
            name = parts.wholes[part.whole].names[0]
            raise RuntimeFault(
                "SW0744",
                f"the optimizer's `{key}` of {name} cannot be saved",
                why=f"its shape {tuple(value.shape)} is not that of the part {tuple(part.data.shape)} of a"
                " parameter, so it belongs to no part of the whole one",
                fix="take an elementwise optimizer, or a plan that does not split this parameter, or lets its"
                " update be computed whole",
            )
        elif value is not None:
            other[key] = value
    return split, other


def load_state(
    optimizer: Optimizer,
    groups: Sequence[Options],
    states: Mapping[int, Mapping[str, Any]],
) -> None:
    """Gives an optimizer the options of its groups, and the states of its parameters by identity."""
    numbers: dict[int, int] = {}
    packed = []
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        ids = [numbers.setdefault(id(p), len(numbers)) for p in group["params"]]
        names = {"param_names": group["param_names"]} if "param_names" in group else {}
        packed.append({**options, **names, "params": ids})
    state = {numbers[key]: dict(value) for key, value in states.items() if value}
    with torch.no_grad():
        optimizer.load_state_dict(OwnState({"state": state, "param_groups": packed}))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _keep_types(optimizer.state.get(parameter, {}), states.get(id(parameter), {}))


def _keep_types(loaded: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """PyTorch gives counts and products the parameter's type, which rounds otherwise than they did."""
    for key, value in saved.items():
        if isinstance(value, Tensor) and not value.dim() and isinstance(loaded.get(key), Tensor):
            loaded[key] = loaded[key].to(value.dtype)
