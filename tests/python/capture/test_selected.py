"""Lists that `masked_select` gives, and the losses that take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
import shardwright as sw
from shardwright import Graph, Plan
from shardwright.capture import Captured, capture
from shardwright.start.compiling import compile_plan

LABELS = torch.tensor([[1, -1, 2], [3, 2, 1], [-1, -1, 4], [1, 1, -1]])


class Spoken(nn.Module):
    """The loss of letters that are heard, as Transformers computes it."""

    def __init__(self, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__()
        self.letters = nn.Linear(8, 6)
        self.reduction, self.zero_infinity = reduction, zero_infinity

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        mask = labels >= 0
        lengths = mask.sum(-1)
        targets = self.targets(labels, mask)
        rows = self.letters(x).log_softmax(-1).transpose(0, 1)
        times = torch.full((len(x),), x.shape[1])
        found = F.ctc_loss(
            rows, targets, times, lengths, reduction=self.reduction, zero_infinity=self.zero_infinity
        )
        return found.sum()

    def targets(self, labels: Tensor, mask: Tensor) -> Tensor:
        return labels.masked_select(mask)


class Counted(Spoken):
    """What is counted is not what is selected."""

    def targets(self, labels: Tensor, mask: Tensor) -> Tensor:
        mask[1].copy_(mask[0])
        mask[0].fill_(True)
        return labels.clamp(min=1).masked_select(mask)


class Overwritten(Spoken):
    """What is selected is written before it is counted on."""

    def targets(self, labels: Tensor, mask: Tensor) -> Tensor:
        ours = labels + 0
        result = ours.masked_select(mask)
        ours.fill_(1)
        return result


class Moved(Spoken):
    """The list is looked at."""

    def targets(self, labels: Tensor, mask: Tensor) -> Tensor:
        return labels.masked_select(mask) % 5


class Asked(Spoken):
    def targets(self, labels: Tensor, mask: Tensor) -> Tensor:
        result = labels.masked_select(mask)
        assert isinstance(result, Tensor)
        return result if len(result) else labels


def call(labels: Tensor = LABELS, times: int = 9) -> tuple[Tensor, Tensor]:
    return torch.randn(len(labels), times, 8, dtype=torch.float64), labels


def small(module: nn.Module, **how: Any) -> Captured:
    return capture(module.double(), call(), **how)


@pytest.mark.slow
def test_a_list_of_targets_is_a_row_for_each_sequence() -> None:
    captured = small(Spoken())
    assert captured.verified and not captured.notes and not captured.known_names
    losses = [op for op in Graph(captured.graph_text).operators if op.target.startswith("shardwright.")]
    assert [op.rule is not None for op in losses] == [True]


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_batch_of_such_a_loss_is_divided(reduction: str, zero_infinity: bool) -> None:
    module, args = Spoken(reduction, zero_infinity).double(), call(times=3 if zero_infinity else 9)
    captured = capture(module, args)
    plan = Plan.named(Graph(captured.graph_text), "data", 2)
    assert all(
        "replicate" not in line for line in plan.text.splitlines() if "%ctc" in line or "letters" in line
    )
    bundle, _ = compile_plan(captured, plan)
    expected = equality.reference(module, args, 2)
    assert not equality.differences(equality.run(bundle, module, args, 2), expected)


@pytest.mark.parametrize("kind", [Counted, Overwritten, Moved, Asked])
def test_what_looks_at_the_list_reads_values(kind: Callable[[], nn.Module]) -> None:
    with pytest.raises(sw.CaptureError) as caught:
        small(kind(), known_inputs=())
    assert caught.value.code == "SW0102"


@pytest.mark.parametrize("kind", [Counted, Overwritten, Moved, Asked])
def test_its_values_are_read_of_the_inputs_then(kind: Callable[[], nn.Module]) -> None:
    captured = small(kind())
    assert captured.verified
    assert list(captured.known_names) == ["labels"]


class Flat(nn.Module):
    """Targets one after the other, of lengths that are plain numbers."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        super().__init__()
        self.letters, self.lengths = nn.Linear(8, 6), lengths

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        rows = self.letters(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(rows, targets, (x.shape[1],) * len(x), self.lengths)


def test_flat_targets_of_known_lengths_become_rows() -> None:
    module = Flat((2, 0, 3)).double()
    captured = capture(module, (torch.randn(3, 7, 8, dtype=torch.float64), torch.tensor([1, 2, 3, 3, 4])))
    assert captured.verified
    assert all(op.rule is not None for op in Graph(captured.graph_text).operators)
