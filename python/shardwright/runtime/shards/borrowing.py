"""The shards of a further program of a model: the model's own, or borrowed from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..communication.comm import Comm
from ..programs.program import Program, RankTable, TensorInfo
from ..programs.regions import Region, numel, whole
from .shards import Shard, Shards, own_copy
from .state import gather

# Names a part of a tensor in all programs of a model: they may see different factors in one dim.
Part = tuple[Any, ...]


class Borrowed:
    """`tensors` are those of which some rank reads other parts than it holds; all ranks know them."""

    def __init__(self, program: Program, model: Shards, comm: Comm, constants: Mapping[str, Tensor]):
        self._model, self._comm, self._constants = model, comm, constants
        self._ours = {tensor.names[0]: tensor for tensor in model.program.tensors.values() if tensor.held}
        self.tensors = _in_other_parts(program, model.program)
        self.shards = Shards(program, comm.rank, comm.device, self._make)
        self.shards.arriving = model.arriving
        self._model_state: list[Any] | None = None
        self._buffers: list[Any] = []

    def refresh(self) -> None:
        """Brings the model's values, if they have changed since."""
        ours = [self._ours[tensor.names[0]] for tensor in self.tensors]
        now = [_fingerprint(shard.data) for tensor in ours for shard in _of(self._model, tensor)]
        if not self._any_rank(now != self._model_state):
            return
        for tensor in self.tensors:
            full = gather(self._model, self._comm, self._ours[tensor.names[0]], _data)
            for shard in _of(self.shards, tensor):
                with torch.no_grad():
                    shard.data.copy_(own_copy(full, tensor, shard.region, shard.data.device))
        self._model_state, self._buffers = now, self._buffers_now()

    def give_back(self, *, gradients: bool) -> None:
        """Brings the model what a forward has written, and gradients where a backward has made them."""
        buffers = [tensor for tensor in self.tensors if tensor.kind == "buffer"]
        if buffers and self._any_rank(self._buffers_now() != self._buffers):
            for tensor in buffers:
                self._bring(tensor, _data, self._model.update)
        for tensor in self.tensors if gradients else []:
            held = _of(self.shards, tensor)
            if tensor.trainable and self._any_rank(any(shard.data.grad is not None for shard in held)):
                self._bring(tensor, _gradient, self._model.add_gradient)
                for shard in held:
                    shard.data.grad = None

    def _bring(
        self, tensor: TensorInfo, value: Callable[[Shard], Tensor], put: Callable[[int, Tensor], None]
    ) -> None:
        full = gather(self.shards, self._comm, tensor, value)
        ours = self._ours[tensor.names[0]]
        for at, shard in enumerate(self._model.held):
            if shard.tensor is ours:
                put(at, own_copy(full, ours, shard.region, shard.data.device))

    def _make(self, tensor: TensorInfo, region: Region) -> Tensor:
        device = self._comm.device
        if tensor.kind == "const":
            return own_copy(self._constants[tensor.names[0]], tensor, region, device)
        shared = None if tensor in self.tensors else self._held(tensor, region)
        if shared is not None:
            return shared
        # What no rank reads is borrowed by none, and has no memory.
        data = torch.zeros((), dtype=tensor.dtype, device=device).expand(tensor.shape)
        if tensor in self.tensors:
            data = own_copy(data, tensor, region, device)
        return nn.Parameter(data, requires_grad=tensor.trainable) if tensor.kind == "param" else data

    def _held(self, tensor: TensorInfo, region: Region) -> Tensor | None:
        part = _part(tensor, region)
        ours = (s for s in self._model.held if s.tensor.names == tensor.names)
        return next((s.data for s in ours if _part(s.tensor, s.region) == part), None)

    def _buffers_now(self) -> list[Any]:
        return [_state(s.data) for t in self.tensors if t.kind == "buffer" for s in _of(self.shards, t)]

    def _any_rank(self, here: bool) -> bool:
        flag = torch.tensor([int(here)], device=self._comm.device)
        if self._comm.world > 1:
            self._comm.all_reduce(flag, tuple(range(self._comm.world)), "max").wait()
        return bool(flag.item())


def _in_other_parts(program: Program, model: Program) -> list[TensorInfo]:
    """Also what a rank holds for the model and does not read: its gradient must come there too."""
    read = {number for role in program.roles for number, _ in role.leaves}
    tensors = {}
    for theirs, ours in zip(program.ranks, model.ranks, strict=True):
        held, wanted = _parts_by_name(model, ours), _parts_by_name(program, theirs)
        for number in sorted(read):
            tensor = program.tensors[number]
            if tensor.held and held.get(tensor.names[0]) != wanted.get(tensor.names[0]):
                tensors[number] = tensor
    return list(tensors.values())


def _parts_by_name(program: Program, table: RankTable) -> dict[str, set[Part]]:
    parts: dict[str, set[Part]] = {}
    for number, region in table.shards:
        tensor = program.tensors[number]
        parts.setdefault(tensor.names[0], set()).add(_part(tensor, region))
    return parts


def _part(tensor: TensorInfo, region: Region) -> Part:
    place = ("whole",) if region == whole(tensor.factors) else (str(tensor.factors), region)
    return *place, tensor.on_host


def _of(shards: Shards, tensor: TensorInfo) -> list[Shard]:
    return [shard for shard in shards.held if shard.tensor is tensor and numel(shard.region)]


def _fingerprint(data: Tensor) -> tuple[Any, ...]:
    """Also of what changes behind autograd's back, through `.data`."""
    wide = data.detach().to(torch.complex128 if data.is_complex() else torch.float64)
    return (*_state(data), complex(wide.sum()), float(wide.abs().square().sum()))


def _state(data: Tensor) -> tuple[int, int]:
    """Another pair whenever the values may be others."""
    return data.data_ptr(), data._version


def _data(shard: Shard) -> Tensor:
    return shard.data.detach()


def _gradient(shard: Shard) -> Tensor:
    grad = shard.data.grad
    return torch.zeros_like(shard.data) if grad is None else grad
