"""The Trainer's optimizer, over shards: the one that it has made for the plain model says which and how."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...checkpoint.optimizers import split_state
from ...checkpoint.parts import parts_of
from ...errors import RuntimeFault
from ...runtime import ParallelModule
from ...runtime.agreement.together import all_of, tried
from ...runtime.optimizers.optimizer import optimizer as over_shards
from ...runtime.programs.program import TensorInfo
from ...runtime.shards.shards import Shard
from ...runtime.shards.state import gather_to_rank_0

# By group, the names of its parameters in the order of the plain model's optimizer.
Names = list[list[str]]


def over_the_shards(model: ParallelModule, plain: nn.Module, optimizer: Optimizer) -> tuple[Optimizer, Names]:
    """The same class with the same options and groups."""
    names = {id(parameter): name for name, parameter in plain.named_parameters()}
    strange = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in names]
    if strange or optimizer.state:
        raise _refused(optimizer, "it has stepped" if not strange else "it has parameters of another model")
    result = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    held: dict[str, list[Tensor]] = {}
    for shard in model.shards.held:
        for name in shard.tensor.names:
            held.setdefault(name, []).append(shard.data)
    groups = [
        {**group, "params": [data for name in inside for data in held.get(name, ())]}
        for group, inside in zip(optimizer.param_groups, result, strict=True)
    ]
    try:
        return over_shards(model, type(optimizer), groups, **_options(optimizer)), result
    except TypeError as error:
        raise _refused(optimizer, f"{type(error).__name__}: {error}") from error


def _options(optimizer: Optimizer) -> dict[str, Any]:
    """Of its defaults, what its class is made with."""
    parameters = inspect.signature(type(optimizer).__init__).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in parameters}


def _refused(optimizer: Optimizer, why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0843",
        f"{type(optimizer).__name__} cannot be made over the shards of the model",
        why=why,
        fix="let `create_optimizer`, or `optimizers=`, give a new optimizer over `model.parameters()` whose"
        " class takes its options by name",
    )


def whole_state(model: ParallelModule, optimizer: Optimizer, names: Names) -> dict[str, Any] | None:
    """The `state_dict()` of the plain model's optimizer, on rank 0. All ranks call this."""
    known: dict[str, dict[str, Any]] = {}
    for of_rank in _kinds(model, parts_of(model), optimizer):
        for name, kinds in of_rank.items():
            known.setdefault(name, {}).update(kinds)
    result: dict[str, dict[str, Any]] = {}
    for tensor in model.program.parameters():
        for key, value in sorted(known.get(tensor.names[0], {}).items()):
            if isinstance(value, torch.dtype):
                value = _gathered(model, optimizer, tensor, key, value)
            result.setdefault(tensor.names[0], {})[key] = value
    return _as_plain(model, optimizer, names, result) if model.comm.leads else None


def _gathered(
    model: ParallelModule, optimizer: Optimizer, tensor: TensorInfo, key: str, dtype: torch.dtype
) -> Tensor | None:
    def value(shard: Shard) -> Tensor:
        result: Tensor = optimizer.state[shard.data][key]
        return result

    return gather_to_rank_0(model.shards, model.comm, tensor, cpu=True, dtype=dtype, value=value)


def _kinds(model: ParallelModule, parts: Any, optimizer: Optimizer) -> list[dict[str, dict[str, Any]]]:
    """Of each rank, by parameter and key: the dtype of what is split, the value of what is not."""

    def mine() -> dict[str, dict[str, Any]]:
        result: dict[str, dict[str, Any]] = {}
        for part in parts.mine:
            split, other = split_state(parts, optimizer, part)
            values = {**{key: x.dtype for key, x in split.items()}, **other}
            if values:
                result.setdefault(parts.wholes[part.whole].names[0], {}).update(values)
        return result

    ranks = [tried(model.comm.rank, mine)]
    if model.comm.world > 1:
        ranks = model.comm.all_gather_objects(ranks[0])
    return all_of(ranks)


def _as_plain(
    model: ParallelModule, optimizer: Optimizer, names: Names, state: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    first = {name: tensor.names[0] for tensor in model.program.parameters() for name in tensor.names}
    numbers: dict[str, int] = {}
    packed = []
    for group, inside in zip(optimizer.param_groups, names, strict=True):
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        packed.append({**options, "params": [numbers.setdefault(name, len(numbers)) for name in inside]})
    result = {at: state[first[name]] for name, at in numbers.items() if first[name] in state}
    return {"state": {at: _on_host(one) for at, one in result.items()}, "param_groups": packed}


def _on_host(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.cpu() if isinstance(value, Tensor) else value for key, value in state.items()}
