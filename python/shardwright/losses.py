"""Losses of PyTorch's that read values, as functions with a rule: one loss for each sequence of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .as_python import register_op


def _one_each(log_probs: Tensor, *_: object) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


def _tried(log_probs: Tensor, targets: Tensor, *lengths: Tensor) -> list[Tensor]:
    """Lengths that fit; where both are one tensor, they do as they are."""
    whole = [len(log_probs) - lengths[0], *lengths[1:]] if len(lengths) > 1 else list(lengths)
    return [log_probs.log_softmax(-1), targets, *whole]


@register_op("t^ b c^, b s^, b, b -> b", fake=_one_each, inputs=_tried)
def ctc_losses(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """`torch.nn.functional.ctc_loss` without a reduction, with targets that have a row for each sequence."""
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, "none", zero_infinity)


def _one_to_one(cost: Tensor, maximize: bool = False) -> str:
    return f"i^ j^ -> k^, k^; size k={min(cost.shape)}"


def _pairs(cost: Tensor, maximize: bool = False) -> tuple[Tensor, Tensor]:
    made = cost.new_empty(min(cost.shape), dtype=torch.int64)
    return made, made.clone()


@register_op(_one_to_one, fake=_pairs)
def assignment(cost: Tensor, maximize: bool = False) -> tuple[Tensor, Tensor]:
    """`scipy.optimize.linear_sum_assignment`: the pairs of rows and columns that cost least."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    rows, columns = linear_sum_assignment(cost.detach().cpu().numpy(), maximize)
    return torch.as_tensor(rows, device=cost.device), torch.as_tensor(columns, device=cost.device)
