"""Groups of parameters: from names, globs or parameters to this rank's shards, the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ...errors import RuntimeFault, with_article
from ..facade.elsewhere import Elsewhere
from ..module import ParallelModule
from ..programs.program import TensorInfo
from .rules import Group

# Stands for "no shard here" where ranks compare numbers of groups.
NOWHERE = -(1 << 40)


def listed_params(params: Iterable[Any] | None) -> list[Any] | None:
    """What may be a generator, so that it can be gone through more than once."""
    if params is None:
        return None
    return [
        {**entry, "params": given_params(entry["params"])}
        if isinstance(entry, Mapping) and "params" in entry
        else entry
        for entry in params
    ]


def given_params(params: Any) -> Any:
    """Those of one group, of which some may be a generator."""
    return params if isinstance(params, (str, Tensor)) else list(params)


def resolve(model: ParallelModule, params: Iterable[Any] | None, *, rest: bool = True) -> list[Group]:
    """The groups that a list of parameters, or of groups, means.

    With `rest`, groups that are given by names alone are followed by one of all others.
    """
    if params is None:
        return [_everything(model)]
    given = list(params)
    as_groups = bool(given) and all(isinstance(entry, Mapping) for entry in given)
    entries = [dict(entry) for entry in given] if as_groups else [{"params": given}]
    items = [_items(entry.pop("params")) for entry in entries]
    if all(isinstance(item, str) for group in items for item in group) and all(items):
        groups = _by_names(model, items, entries)
        return groups + _rest(model, groups) if rest and as_groups else groups
    return _by_tensors(model, items, entries)


def _everything(model: ParallelModule) -> Group:
    held = [shard.data for shard in model.shards.held if shard.tensor.steppable]
    return Group(held, {}, {tensor.id for tensor in model.program.parameters() if tensor.steppable})


def _items(params: Any) -> list[Any]:
    """Names and tensors; a pair is what `named_parameters` gives."""
    listed = [params] if isinstance(params, (str, Tensor)) else list(params)
    return [item[1] if isinstance(item, tuple) else item for item in listed]


def _by_names(
    model: ParallelModule, items: Sequence[Sequence[str]], options: Sequence[dict[str, Any]]
) -> list[Group]:
    parameters = model.program.parameters()
    unused = [p for names in items for p in names if not any(_matches(t, p) for t in parameters)]
    if unused:
        raise RuntimeFault(
            "SW0716",
            f"no parameter is named {', '.join(map(repr, unused))}",
            fix="parameter groups name the single-device model's parameters, or globs of them",
        )
    groups = [Group([], chosen, set()) for chosen in options]
    for tensor in (tensor for tensor in parameters if tensor.steppable):
        matching = [at for at, names in enumerate(items) if any(_matches(tensor, name) for name in names)]
        if len(matching) > 1:
            raise RuntimeFault(
                "SW0716",
                f"parameter {tensor.names[0]!r} is in groups {matching[0]} and {matching[1]} both",
            )
        for at in matching:
            groups[at].tensors.add(tensor.id)
    for group in groups:
        group.params = _held(model, group.tensors)
    return groups


def _rest(model: ParallelModule, groups: Sequence[Group]) -> list[Group]:
    named = set().union(*(group.tensors for group in groups))
    everything = _everything(model).tensors
    left = everything - named
    return [Group(_held(model, left), {}, left)] if left or not groups else []


def _held(model: ParallelModule, tensors: set[int]) -> list[Tensor]:
    return [shard.data for shard in model.shards.held if shard.tensor.id in tensors]


def _matches(tensor: TensorInfo, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in tensor.names)


def _by_tensors(
    model: ParallelModule, items: Sequence[Sequence[Any]], options: Sequence[dict[str, Any]]
) -> list[Group]:
    """Each rank gives its own shards; that all mean the same groups is compared."""
    owners = {id(shard.data): shard.tensor for shard in model.shards.held}
    groups: list[Group] = []
    for group, chosen in zip(items, options, strict=True):
        params = [tensor for item in group for tensor in _tensors(model, item)]
        groups.append(Group(params, chosen, set()))
    strange = sum(id(param) not in owners for group in groups for param in group.params)
    lowest, highest = _agreed(model, groups, owners, strange)
    for tensor in model.program.parameters():
        low, high = lowest[tensor.id], highest[tensor.id]
        if low != high:
            raise _disagreement(tensor)
        if high >= 0:
            groups[high].tensors.add(tensor.id)
    return groups


def _tensors(model: ParallelModule, item: Any) -> list[Tensor]:
    if isinstance(item, str):
        return [param for group in _by_names(model, [[item]], [{}]) for param in group.params]
    if not isinstance(item, Tensor):
        raise RuntimeFault(
            "SW0716",
            f"a parameter group holds {item!r}",
            why=f"it is {with_article(type(item).__name__)}, neither a parameter nor a name",
            fix="give parameters of the parallelized model, or names of the single-device model's",
        )
    return [] if isinstance(item, Elsewhere) else [item]


def _agreed(
    model: ParallelModule, groups: Sequence[Group], owners: Mapping[int, TensorInfo], strange: int
) -> tuple[dict[int, int], dict[int, int]]:
    """For each tensor the lowest and the highest group that any of its shards is in; -1 is none.

    One message for all ranks, so that all refuse what one of them does.
    """
    of_shard = {id(param): at for at, group in enumerate(groups) for param in group.params}
    lowest, highest = {}, {}
    for tensor in model.program.parameters():
        mine = [of_shard.get(key, -1) for key, owner in owners.items() if owner is tensor]
        lowest[tensor.id], highest[tensor.id] = min(mine, default=-NOWHERE), max(mine, default=NOWHERE)
    numbers = [strange, len(groups), -len(groups), *highest.values(), *(-low for low in lowest.values())]
    message = torch.tensor(numbers, dtype=torch.int64, device=model.comm.device)
    if model.comm.world > 1:
        model.comm.all_reduce(message, tuple(range(model.comm.world)), "max").wait()
    strange, most, fewest, *extremes = message.tolist()
    if strange:
        raise RuntimeFault(
            "SW0716",
            f"parameter groups hold {strange} tensors that are not parameters of this model",
            why="a rank steps on its shards, which are other tensors than those of the module before",
            fix="take them from `named_parameters()` of the parallelized model",
        )
    if most != -fewest:
        raise RuntimeFault(
            "SW0761",
            f"the ranks make between {-fewest} and {most} parameter groups",
            why="a group stands for the same parameters of the model on every rank, also where it is empty",
            fix="make the same groups on every rank",
        )
    half = len(highest)
    return (
        {number: -low for number, low in zip(lowest, extremes[half:], strict=True)},
        dict(zip(highest, extremes[:half], strict=True)),
    )


def _disagreement(tensor: TensorInfo) -> RuntimeFault:
    return RuntimeFault(
        "SW0761",
        f"the ranks put shards of {tensor.names[0]!r} into different parameter groups",
        why="the shards and copies of one parameter are stepped with the same options",
        fix="choose by what is the same on every rank: the name, `dim()`, `model.original_shape(name)`",
    )
