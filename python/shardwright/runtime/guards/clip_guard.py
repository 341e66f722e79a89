"""PyTorch's own norm of gradients sees one rank: of a parallelized model's gradients it is refused, unless
each rank has all of them, whole and once."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.utils import clip_grad

from ...errors import RuntimeFault
from ..shards.held import alike_everywhere

if TYPE_CHECKING:
    from ..module import ParallelModule

# What every way to PyTorch's norm calls, also one that was imported long before.
HELPER = "_group_tensors_by_device_and_dtype"

_watched: list[weakref.ref[ParallelModule]] = []


def refuse_plain_clipping(model: ParallelModule) -> None:
    """From now on PyTorch's norm of gradients refuses those of this model."""
    if alike_everywhere(model.program):
        return
    _watched.append(weakref.ref(model, _watched.remove))
    original = getattr(clip_grad, HELPER)
    if not hasattr(original, "shardwright"):
        setattr(clip_grad, HELPER, _watching(original))


def _watching(original: Callable[..., Any]) -> Callable[..., Any]:
    def group(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "_get_total_norm" and _watched:
            _refuse_shards(tensors[0])
        return original(tensors, *args, **kwargs)

    group.shardwright = True  # type: ignore[attr-defined]
    return group


def _refuse_shards(tensors: Iterable[Tensor]) -> None:
    models = [model for reference in list(_watched) if (model := reference()) is not None]
    shards = [parameter for model in models for parameter in model.parameters()]
    ours = {id(shard) for shard in shards} | {id(s.grad) for s in shards if s.grad is not None}
    if any(id(tensor) in ours for tensor in tensors):
        raise RuntimeFault(
            "SW0762",
            "the norm of a parallelized model's gradients is taken on one rank alone",
            why="a rank holds shards and copies of gradients, so each rank would find another norm",
            fix="call `sw.clip_grad_norm_(model, max_norm)`, on every rank",
        )
