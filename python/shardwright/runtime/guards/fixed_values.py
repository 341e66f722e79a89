"""Buffers for whose values programs were made, as the model reads them in Python: they stay as they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import RuntimeFault
from ..programs.program import TensorInfo
from ..programs.regions import Factors, Region, cut, whole
from ..shards.shards import Shards


class FixedValues:
    """Those of a model's programs, by the first names of the buffers."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._wanted: dict[str, Tensor] = {}
        # Of what was compared last: the tensor, and how often it had been written and renewed.
        self._seen: dict[int, tuple[int, int, int]] = {}

    def know(self, fixed: Mapping[str, Any]) -> None:
        """What one more program was made for."""
        tensors = {tensor.names[0]: tensor for tensor in self._shards.program.tensors.values()}
        for name, value in fixed.items():
            if name in tensors:
                wanted = torch.tensor(value, dtype=tensors[name].dtype)
                _require(name, self._wanted.setdefault(name, wanted), wanted)

    def require(self) -> None:
        """What this rank holds is what programs were made for; what nobody has written since is not read."""
        for at, shard in enumerate(self._shards.held) if self._wanted else ():
            name = shard.tensor.names[0]
            now = id(shard.data), shard.data._version, shard.renewed
            if name in self._wanted and self._seen.get(at) != now:
                self.require_part(name, shard.tensor.factors, shard.region, shard.data)
                self._seen[at] = now

    def require_part(self, name: str, factors: Factors, region: Region, value: Tensor) -> None:
        wanted = self._wanted.get(name)
        if wanted is not None:
            _require(name, wanted if region == whole(factors) else cut(wanted, factors, region), value)

    def require_whole(
        self, values: Mapping[str, Tensor], names_of: Callable[[TensorInfo], list[str]]
    ) -> None:
        """Of values that are about to be loaded."""
        for tensor in self._shards.program.saved_tensors() if self._wanted else ():
            name = tensor.names[0]
            value = next((values[other] for other in names_of(tensor) if other in values), None)
            if name in self._wanted and value is not None and tuple(value.shape) == tensor.shape:
                _require(name, self._wanted[name], value)


def _require(name: str, wanted: Tensor, value: Tensor) -> None:
    now = value.detach().to("cpu", wanted.dtype)
    if not torch.equal(now, wanted):
        raise RuntimeFault(
            "SW0867",
            f"the program was made for another value of the buffer `{name}`",
            why=f"the model reads it in Python, where it was {wanted.tolist()}, and now it is {now.tolist()}:"
            " what follows from it, such as sizes, is fixed in the program",
            fix="load this value into the module before `sw.parallelize`, which makes a program for it",
        )
