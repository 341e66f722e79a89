"""Of which tensors of the model a rank has less than all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..programs.program import Program, TensorInfo
from ..programs.regions import numel, whole
from .shards import Shards


def split(program: Program, tensors: Sequence[TensorInfo]) -> list[TensorInfo]:
    """Those of which some rank has only a part."""
    held = [shard for table in program.ranks for shard in table.shards]
    divided = {number for number, region in held if region != whole(program.tensors[number].factors)}
    return [tensor for tensor in tensors if tensor.id in divided]


def elsewhere(program: Program, tensors: Sequence[TensorInfo]) -> list[TensorInfo]:
    """Those that some rank does not have."""
    of_ranks = [{number for number, _ in table.shards} for table in program.ranks]
    return [tensor for tensor in tensors if any(tensor.id not in held for held in of_ranks)]


def alike_everywhere(program: Program) -> bool:
    """Whether all ranks hold each parameter and buffer once, and whole; then gradients are whole as well."""
    held = {tensor.id: whole(tensor.factors) for tensor in program.tensors.values() if tensor.held}
    return all(
        sorted(shard for shard in table.shards if shard[0] in held) == sorted(held.items())
        for table in program.ranks
    )


def in_parts(shards: Shards) -> list[Tensor]:
    """The parameters here whose gradients are less than the model's, however many parts there are of each.

    All of them, if the model has others that are not here at all.
    """
    sizes: dict[int, int] = {}
    for shard in shards.held:
        sizes[shard.tensor.id] = sizes.get(shard.tensor.id, 0) + numel(shard.region)
    lacking = any(tensor.id not in sizes for tensor in shards.program.parameters())
    return [
        shard.data
        for shard in shards.held
        if shard.tensor.kind == "param"
        and (lacking or sizes[shard.tensor.id] < numel(whole(shard.tensor.factors)))
    ]
