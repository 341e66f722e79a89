"""Values between the plain model, which the Trainer saves and loads, and the shards of the ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...runtime import ParallelModule
from ...runtime.shards.state import gather, gather_to_rank_0


@torch.no_grad()
def bring_back(model: ParallelModule, plain: nn.Module, *, everywhere: bool) -> None:
    """Into the plain model, on rank 0 or `everywhere`. All ranks call this. What is frozen stays as it is."""
    there = _tensors(plain)
    model._require_finished("the model is saved")
    with model._together("full_state_dict"):
        for tensor in model.program.saved_tensors():
            if tensor.frozen:
                continue
            if everywhere:
                value: Tensor | None = gather(model.shards, model.comm, tensor, lambda s: s.data.detach())
            else:
                value = gather_to_rank_0(model.shards, model.comm, tensor, cpu=True)
            for name in model.names_of(tensor) if value is not None else ():
                there[name].copy_(value)  # type: ignore[arg-type]


def hand_out(plain: nn.Module, model: ParallelModule) -> None:
    """The plain model's values, which are the same on all ranks."""
    there = _tensors(plain)
    names = {name for tensor in model.program.saved_tensors() for name in model.names_of(tensor)}
    model.load_full_state_dict({name: value for name, value in there.items() if name in names})


def _tensors(plain: nn.Module) -> dict[str, Tensor]:
    """By all names of each; some state dicts leave names out, or change them."""
    result = dict(plain.named_buffers(remove_duplicate=False))
    return {**result, **{n: p.detach() for n, p in plain.named_parameters(remove_duplicate=False)}}
