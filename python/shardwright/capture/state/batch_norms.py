"""Batch norms without a momentum, which average all batches alike: how many there were is in a buffer, and
Python would read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def averages_in_tensors(module: nn.Module) -> Iterator[None]:
    """For a while, such norms update their running statistics by operators of their own."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm) and _averages(part)]
    for norm in norms:
        norm.__dict__["forward"] = partial(_forward, norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.__dict__["forward"]


def _averages(norm: _BatchNorm) -> bool:
    plain = type(norm).forward is _BatchNorm.forward and "forward" not in norm.__dict__
    return plain and norm.momentum is None and norm.training and norm.num_batches_tracked is not None


def _forward(norm: _BatchNorm, x: Tensor) -> Tensor:
    norm._check_input_dim(x)
    count, mean, variance = norm.num_batches_tracked, norm.running_mean, norm.running_var
    assert count is not None and mean is not None and variance is not None
    with torch.no_grad():
        count.add_(1)
        over = [dim for dim in range(x.dim()) if dim != 1]
        batch = x.to(mean.dtype)
        centred = batch - batch.mean(over, keepdim=True)
        # Sums, as a batch that is split has them.
        square = centred.square().sum(over) / (x.numel() // x.shape[1] - 1)
        for running, statistic in ((mean, batch.mean(over)), (variance, square)):
            running.add_((statistic - running) / count.to(running.dtype))
    return F.batch_norm(x, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
