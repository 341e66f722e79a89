"""Loading: each rank reads its parts, whatever plan and number of ranks they were saved from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import RuntimeFault
from ..runtime.agreement.together import each, together
from ..runtime.programs.boxes import boxes
from .behind import settle
from .metadata import Place
from .optimizers import Options, groups_of, has_state_of_whole, load_state, merged, stepped_whole
from .parts import Part, Parts, Whole, parts_of
from .reading import Checkpoint, Target
from .streams import restore_streams


def load(model: nn.Module, optimizer: Optimizer | None, path: str | Path) -> dict[str, Any]:
    """Continues from a checkpoint; gives back its `extra`. All ranks must call this.

    The plan and the number of ranks may be others than those it was saved from. If anything does not
    fit, cannot be read or is not as it was saved, on any rank, nothing is changed.
    """
    parts = parts_of(model)
    comm = parts.comm
    settle(comm)
    opened: list[Checkpoint] = []

    def fits() -> list[list[int]]:
        opened.append(Checkpoint(Path(path)))
        _refuse_another_model(opened[0], parts)
        return [] if optimizer is None else groups_of(parts, optimizer)

    groups = together(comm, fits, merged)
    if comm.rank == 0:
        opened[0].warn_without_digests()
    loaded = each(comm, lambda: _read(opened[0], parts, optimizer, groups))
    each(comm, lambda: _take(loaded, parts, optimizer))
    return loaded.extra


@dataclass
class _Loaded:
    """Everything of a checkpoint that is this rank's, before any of it is used."""

    parts: list[Tensor] = field(default_factory=list)
    groups: list[Options] = field(default_factory=list)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    random: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def _read(
    checkpoint: Checkpoint, parts: Parts, optimizer: Optimizer | None, groups: Sequence[Sequence[int]]
) -> _Loaded:
    loaded = _Loaded()
    targets = []
    for part in parts.mine:
        targets.append(_target(checkpoint, parts, part, _found(checkpoint, parts.wholes[part.whole])))
        loaded.parts.append(targets[-1].into)
    if optimizer is not None:
        loaded.groups = _groups(checkpoint, parts, groups)
        targets += _states(checkpoint, parts, optimizer, loaded.states)
    checkpoint.fill(targets)
    _refuse_other_values(parts, loaded)
    _read_values(checkpoint, parts.comm.rank, loaded)
    return loaded


def _refuse_other_values(parts: Parts, loaded: _Loaded) -> None:
    """Of buffers for whose values the programs were made."""
    for part, value in zip(parts.mine, loaded.parts, strict=True):
        whole = parts.wholes[part.whole]
        for prefix, model in parts.parallel.items():
            for name in whole.names:
                if name.startswith(prefix):
                    known_as = name.removeprefix(prefix)
                    model.variants.fixed.require_part(known_as, whole.factors, part.region, value)


def _read_values(checkpoint: Checkpoint, rank: int, loaded: _Loaded) -> None:
    values = checkpoint.values(checkpoint.places("shardwright", "about") + checkpoint.places("extra"))
    for place, value in values.items():
        if place == ("extra",):
            loaded.extra = value
        elif place == ("shardwright", "about"):
            loaded.about = value
    streams = checkpoint.places("shardwright", "random")
    if streams:
        place = ("shardwright", "random", str(rank % len(streams)))
        loaded.random = checkpoint.values([place])[place]


def _take(loaded: _Loaded, parts: Parts, optimizer: Optimizer | None) -> None:
    if optimizer is not None:
        load_state(optimizer, loaded.groups, loaded.states)
    with torch.no_grad():
        for part, value in zip(parts.mine, loaded.parts, strict=True):
            part.data.copy_(value)
    for prefix, model in parts.parallel.items():
        if prefix in loaded.about.get("modules", {}):
            model.set_clock(loaded.about["modules"][prefix])
    if loaded.random is not None:
        restore_streams(loaded.random, parts.parallel.values())


def _target(checkpoint: Checkpoint, parts: Parts, part: Part, place: Place) -> Target:
    """A tensor of the part's shape, to be filled from a tensor of the whole's shape."""
    stored = checkpoint.tensor(place)
    assert stored is not None
    into = torch.empty(part.data.shape, dtype=stored.properties.dtype)
    return Target(place, boxes(part.region, parts.wholes[part.whole].factors), into)


def _found(checkpoint: Checkpoint, whole: Whole) -> Place:
    return next(place for place in _model_places(whole) if checkpoint.tensor(place))


def _model_places(whole: Whole) -> list[Place]:
    return [("model", name) for name in whole.names]


# ---- the optimizer ---------------------------------------------------------------------------------


def _groups(checkpoint: Checkpoint, parts: Parts, groups: Sequence[Sequence[int]]) -> list[Options]:
    """For each group of the optimizer the options of the checkpoint's group of the same parameters."""
    values = checkpoint.values(checkpoint.places("optimizer", "param_groups"))
    saved: dict[int, Options] = {}
    for (_, _, number, key), value in values.items():
        saved.setdefault(number, {})[key] = value
    if not saved:
        raise RuntimeFault(
            "SW0746",
            f"the checkpoint {checkpoint.path} has no optimizer",
            why="it was saved without one",
            fix="load it with `optimizer=None`",
        )
    left = [saved[number] for number in sorted(saved)]
    chosen = []
    for at, group in enumerate(groups):
        names = {name for number in group for name in parts.wholes[number].names}
        same = [one for one in left if len(one["params"]) == len(group) and names.issuperset(one["params"])]
        if not same:
            raise _other_groups(at, [parts.wholes[number].names[0] for number in group], left)
        left.remove(same[0])
        chosen.append({key: value for key, value in same[0].items() if key != "params"})
    if left:
        raise _other_groups(len(groups), [], left)
    return chosen


def _other_groups(at: int, names: list[str], left: list[Options]) -> RuntimeFault:
    others = "; ".join(_some(one["params"]) for one in left) or "none"
    ours = f"group {at} of this one has {_some(names)}" if names else f"this one has {at} groups"
    return RuntimeFault(
        "SW0746",
        "the checkpoint's optimizer has other parameter groups",
        why=f"{ours}; groups of the checkpoint that are left: {others}",
        fix="make the groups as they were when it was saved",
    )


def _states(
    checkpoint: Checkpoint, parts: Parts, optimizer: Optimizer, states: dict[int, dict[str, Any]]
) -> Iterator[Target]:
    """What is to be read for the optimizer's states of this rank's parts; puts the values in `states`."""
    used = {id(p) for group in optimizer.param_groups for p in group["params"]}
    saved: dict[str, list[Place]] = {}
    for place in checkpoint.places("optimizer", "state"):
        saved.setdefault(place[2], []).append(place)
    for part in parts.mine:
        if id(part.data) not in used:
            continue
        in_parts = not stepped_whole(optimizer, part)
        if not in_parts and not has_state_of_whole(optimizer, part):
            continue
        whole = parts.wholes[part.whole]
        places = [place for name in whole.names for place in saved.get(name, [])]
        state = states.setdefault(id(part.data), {})
        for place in places:
            tensor = checkpoint.tensor(place)
            if tensor is None:
                state[place[3]] = checkpoint.values([place])[place]
                continue
            target = (
                _target(checkpoint, parts, part, place)
                if in_parts and tuple(tensor.size) == whole.shape
                else _whole_target(place, tuple(tensor.size), tensor.properties.dtype)
            )
            state[place[3]] = target.into
            yield target


def _whole_target(place: Place, shape: tuple[int, ...], dtype: torch.dtype) -> Target:
    region = tuple((0, size) for size in shape)
    return Target(place, boxes(region, [[size] for size in shape]), torch.empty(shape, dtype=dtype))


# ---- another model ---------------------------------------------------------------------------------


def _refuse_another_model(checkpoint: Checkpoint, parts: Parts) -> None:
    known = {name: whole for whole in parts.wholes for name in whole.names}
    places = checkpoint.places("model")
    missing = [
        " or ".join(whole.names)
        for whole in parts.wholes
        if not any(checkpoint.tensor(place) for place in _model_places(whole))
    ]
    extra = sorted(place[1] for place in places if place[1] not in known)
    misfits = []
    for _, name, *_rest in places:
        stored = checkpoint.tensor(("model", name))
        if stored is not None and name in known and tuple(stored.size) != known[name].shape:
            misfits.append(f"{name} is {tuple(stored.size)}, the model has {known[name].shape}")
        elif (
            stored is not None
            and name in known
            and sum(prod(c.sizes) for c in stored.chunks) < prod(stored.size)
        ):
            misfits.append(f"{name} is not complete")
    labelled = (("missing", missing), ("unknown", extra), ("different", misfits))
    if missing or extra or misfits:
        raise RuntimeFault(
            "SW0747",
            f"the checkpoint {checkpoint.path} is of another model",
            why="; ".join(f"{label}: {_some(names)}" for label, names in labelled if names),
            fix="load a checkpoint of this model; nothing was loaded from this one",
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
