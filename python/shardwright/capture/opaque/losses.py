"""Functions of PyTorch that read values and give results of known sizes: operators, as Functions are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import as_python

_CTC = F.ctc_loss


@contextmanager
def losses_as_operators() -> Iterator[None]:
    """While a model is traced."""
    with mock.patch.object(F, "ctc_loss", _ctc):
        yield


def _ctc(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """It reads the lengths, and gives a loss for each sequence, or one for all."""
    if as_python.is_inside():
        return _CTC(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
    args = log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
    call, tensors = as_python.written(args, {})
    each = reduction == "none" and log_probs.dim() == 3
    results = as_python.results_written([(log_probs.dtype, log_probs.shape[1:2] if each else ())])
    [loss] = torch.ops.shardwright.function("torch.nn.functional:ctc_loss", tensors, f"{call} -> {results}")
    return loss
