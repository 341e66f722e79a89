"""Functions of PyTorch that read values and give results of known sizes: operators, as Functions are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import as_python
from ...losses import assignment, ctc_losses
from ..autocast import ambient
from .selected import Selected

_CTC = F.ctc_loss
_ASSIGNING = "linear_sum_assignment"
_REDUCED = {"mean": Tensor.mean, "sum": Tensor.sum}


@contextmanager
def losses_as_operators() -> Iterator[None]:
    """While a model is traced."""
    assigning: Any = getattr(sys.modules.get("scipy.optimize"), _ASSIGNING, None)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(F, "ctc_loss", _ctc))
        for home in _homes(assigning):
            stack.enter_context(mock.patch.object(home, _ASSIGNING, _assigned(assigning)))
        yield


def _homes(function: Any) -> list[ModuleType]:
    """The modules that have imported it."""
    if function is None:
        return []
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return [module for module in modules if vars(module).get(_ASSIGNING) is function]


def _assigned(original: Callable[..., Any]) -> Callable[..., Any]:
    def linear_sum_assignment(cost_matrix: Any, maximize: bool = False) -> Any:
        """Of a matrix that is traced it gives tensors in the place of arrays."""
        if as_python.is_inside() or not isinstance(cost_matrix, Tensor):
            return original(cost_matrix, maximize)
        return assignment(cost_matrix, maximize)

    return linear_sum_assignment


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
    rows = _rows(log_probs, targets, target_lengths)
    if rows is None or ambient():
        args = log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
        return _whole(*args)
    times, counts = _tensor(input_lengths, log_probs), _tensor(target_lengths, log_probs)
    losses = ctc_losses(log_probs, rows, times, counts, blank, zero_infinity)
    if reduction == "mean":
        losses = losses / counts.to(losses.dtype).clamp(min=1)
    return _REDUCED[reduction](losses) if reduction in _REDUCED else losses


def _rows(log_probs: Tensor, targets: Any, lengths: Any) -> Tensor | None:
    """The targets with a row for each sequence; none where these are not known to be so."""
    if log_probs.dim() != 3:
        return None
    if type(targets) is Selected:
        return targets.rows(lengths)
    if targets.dim() == 2:
        return targets
    # What PyTorch would refuse is left to it.
    if isinstance(lengths, Tensor) or sum(lengths) != len(targets):
        return None
    longest = max(lengths, default=0)
    parts = [F.pad(part, (0, longest - len(part))) for part in targets.split(list(lengths))]
    return torch.stack(parts) if len(parts) == log_probs.shape[1] else None


def _tensor(lengths: Tensor | Sequence[int], like: Tensor) -> Tensor:
    if isinstance(lengths, Tensor):
        return lengths
    return torch.tensor(lengths, dtype=torch.int64, device=like.device)


def _whole(log_probs: Tensor, targets: Any, *rest: Any) -> Tensor:
    """An operator without a rule: one that is divided along nothing."""
    # Here what is selected is read.
    args = log_probs, Selected.looked_at(targets), *rest
    reduction = rest[3]
    call, tensors = as_python.written(args, {})
    each = reduction == "none" and log_probs.dim() == 3
    results = as_python.results_written([(log_probs.dtype, log_probs.shape[1:2] if each else ())])
    [loss] = torch.ops.shardwright.function("torch.nn.functional:ctc_loss", tensors, f"{call} -> {results}")
    return loss
