"""Which tensors get a gradient of what is computed of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def which_learn(given: Sequence[Tensor], results: Sequence[Tensor]) -> list[bool]:
    """Tells a gradient that is not there from one of zeros, as optimizers do."""
    seeds = [result for result in results if result.requires_grad]
    asked = [tensor for tensor in given if tensor.requires_grad]
    if not seeds or not asked:
        return [False] * len(given)
    grads = torch.autograd.grad(
        seeds, asked, [torch.ones_like(seed) for seed in seeds], retain_graph=True, allow_unused=True
    )
    learning = {id(tensor) for tensor, grad in zip(asked, grads, strict=True) if grad is not None}
    return [id(tensor) in learning for tensor in given]


def learning(tensors: Sequence[Tensor], which: Sequence[bool]) -> list[Tensor]:
    """The tensors, the others cut off: to the graph they have no gradient."""
    return [
        x.detach() if x.requires_grad and not learns else x for x, learns in zip(tensors, which, strict=True)
    ]


def may_learn(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
