"""Where the values of a model's tensors come from, decided for all of them before any is made.

In this order: what was given as `weights`; the module's own values; the initialisation that
`deferred` has recorded. Constants of the graph come with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RuntimeFault
from ..runtime.agreement.agreement import digest
from ..runtime.programs.program import Program, TensorInfo
from ..runtime.programs.regions import Region
from ..runtime.shards.shards import own_copy
from .deferring import recorded
from .files import Files

Weights = str | Path | Sequence[str | Path] | Mapping[str, Tensor]
Wanted = Sequence[tuple[TensorInfo, Region]]
# Gives a part of a tensor.
Reader = Callable[[TensorInfo, Region, torch.device], Tensor]


def values_of(
    module: nn.Module, constants: Mapping[str, Tensor], weights: Weights | None, program: Program
) -> Values:
    """The values of a program's tensors; an error, before anything is allocated, where one has none."""
    values = Values(module, constants, weights)
    values.check(tensor for tensor in program.tensors.values() if tensor.held)
    return values


class Values:
    """The values of a module. `module` may be on meta, if others have its values."""

    def __init__(self, module: nn.Module, constants: Mapping[str, Tensor], weights: Weights | None = None):
        self._given = None if weights is None else _given(weights)
        self._constants = constants
        self._own: dict[str, Tensor] = dict(module.named_buffers(remove_duplicate=False))
        self._own.update(module.named_parameters(remove_duplicate=False))
        self._recorded = recorded(module)
        self._aliases = _aliases(self._own)
        self._saved = set(module.state_dict(keep_vars=True))

    def check(self, tensors: Iterable[TensorInfo]) -> None:
        """Refuses, with all their names, tensors that have no source or do not fit it."""
        held = list(tensors)
        if self._given is not None:
            self._refuse_misfits(self._given, held)
        lost = [tensor.names[0] for tensor in held if self._source(tensor) is None]
        if lost:
            raise RuntimeFault(
                "SW0749",
                f"{len(lost)} tensors of the model have no values",
                why=f"they are on meta, and nothing else has values for them: {_some(lost)}",
                fix="give files as `weights=`, or build the model with `shardwright.deferred`, which records"
                " its initialisation",
            )

    def parts(self, wanted: Wanted, device: torch.device) -> list[Tensor]:
        """The wanted parts, in memory of their own; no more than a few whole tensors at a time."""
        parts: list[Tensor | None] = [None] * len(wanted)
        for at, part in self.one_by_one(wanted, device):
            parts[at] = part
        return [part for part in parts if part is not None]

    def one_by_one(self, wanted: Wanted, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """Each wanted part with its place among them, in the order in which they are had."""
        later: dict[str, list[int]] = {}
        given = self._given
        with given.opened() if isinstance(given, Files) else _Nothing():
            for at, (tensor, region) in enumerate(wanted):
                source = self._source(tensor)
                if isinstance(source, str):
                    later.setdefault(source, []).append(at)
                elif source is not None:
                    yield at, source(tensor, region, device)
        if self._recorded is not None and later:
            for name, whole in self._recorded.values(later):
                for at in later[name]:
                    yield at, own_copy(whole, *wanted[at], device)

    def marks(self, tensors: Sequence[TensorInfo]) -> list[int]:
        """A number for the value of each whole tensor: another one where the value is another.

        Tensors in memory are read. Of files only samples are, and of an initialisation what was recorded.
        """
        with self._given.opened() if isinstance(self._given, Files) else _Nothing():
            return [self._mark(tensor) for tensor in tensors]

    def _mark(self, tensor: TensorInfo) -> int:
        names = self._names(tensor)
        if self._given is not None and tensor.saved:
            name = next((name for name in names if name in self._given.shapes), None)
            if name is not None:
                return self._given.mark(name)
        value = next((self._own[name] for name in names if name in self._own), None)
        if value is not None and not value.is_meta:
            return digest([value])
        record = self._recorded
        name = next((name for name in names if record is not None and name in record.refs), None)
        return 0 if record is None or name is None else record.mark(name)

    def _source(self, tensor: TensorInfo) -> Reader | str | None:
        """What reads a part of it, or the name of its record."""
        names = self._names(tensor)
        if tensor.kind == "const":
            return _whole(self._constants[tensor.names[0]])
        if self._given is not None and tensor.saved:
            name = next((name for name in names if name in self._given.shapes), None)
            if name is not None:
                return self._given_part(name)
        value = next((self._own[name] for name in names if name in self._own), None)
        if value is not None and not value.is_meta:
            return _whole(value)
        known = self._recorded.names() if self._recorded is not None else set()
        return next((name for name in names if name in known), None)

    def _given_part(self, name: str) -> Reader:
        given = self._given
        assert given is not None
        return lambda tensor, region, device: given.part(name, tensor, region, device)

    def _names(self, tensor: TensorInfo) -> list[str]:
        names = [*tensor.names, *(other for name in tensor.names for other in self._aliases.get(name, ()))]
        return list(dict.fromkeys(names))

    def _refuse_misfits(self, given: Files | _Tensors, tensors: Sequence[TensorInfo]) -> None:
        saved = [tensor for tensor in tensors if tensor.saved]
        known = {name: tensor for tensor in saved for name in self._names(tensor)}
        missing = [
            " or ".join(self._names(tensor))
            for tensor in saved
            if self._recorded is None and not any(name in given.shapes for name in self._names(tensor))
        ]
        extra = [name for name in given.shapes if name not in known and name not in self._saved]
        misfits = []
        for name, shape in given.shapes.items():
            ours, dtype = known.get(name), given.dtypes[name]
            if ours is not None and (shape != ours.shape or not _castable(dtype, ours)):
                misfits.append(f"{name} is {shape} of {dtype}, the model has {ours.shape} of {ours.dtype}")
        labelled = (("missing", missing), ("unknown", extra), ("different", misfits))
        if missing or extra or misfits:
            raise RuntimeFault(
                "SW0748",
                "the weights do not fit the model",
                why="; ".join(f"{label}: {_some(names)}" for label, names in labelled if names),
                fix="give the weights of this model, by the names of its state dict",
            )


class _Tensors:
    """A state dict that is in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._tensors = tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in tensors.items()}

    def mark(self, name: str) -> int:
        return digest([self._tensors[name]])

    def part(self, name: str, tensor: TensorInfo, region: Region, device: torch.device) -> Tensor:
        return own_copy(self._tensors[name], tensor, region, device)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


def _given(weights: Weights) -> Files | _Tensors:
    return _Tensors(weights) if isinstance(weights, Mapping) else Files(weights)


def _whole(full: Tensor) -> Reader:
    return lambda tensor, region, device: own_copy(full, tensor, region, device)


def _aliases(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """All names of tensors that have several."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return {name: same for same in names.values() for name in same if len(same) > 1}


def _castable(given: torch.dtype, tensor: TensorInfo) -> bool:
    both_float = given.is_floating_point and tensor.dtype.is_floating_point
    return both_float or given == tensor.dtype


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
