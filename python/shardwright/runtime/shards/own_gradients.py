"""The gradient of a leaf is in memory of its own.

Autograd gives a leaf the very tensor that came to it, where nobody else seems to have that. It may be a view:
what a view, a sum of one element or an addition hands back is the memory of what arrived. Leaves that were
given the same would then be added to twice. Or it has no memory at all: a gradient of zeros, such as
that of a sign, to which PyTorch itself adds nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The gradient, and the object that asks.
_OWN = 2


def own_gradient(leaf: Tensor) -> None:
    """Whenever something is added to it."""
    leaf.register_post_accumulate_grad_hook(_apart)


def _apart(leaf: Tensor) -> None:
    grad = leaf.grad
    if grad is None or grad.layout != torch.strided:
        return
    storage = grad.untyped_storage()
    if grad._is_zerotensor() or torch._C._storage_Use_Count(storage._cdata) > _OWN:  # type: ignore[attr-defined]
        leaf.grad = grad.clone()
