"""What is asked of random numbers: where that is certain it is no value that is read, and they are drawn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
import shardwright as sw
from shardwright import Graph, Plan
from shardwright.capture import capture
from shardwright.start.compiling import compile_plan

Asked = Callable[[], Tensor]


class Dropping(nn.Module):
    """Layers are dropped where `asked` says so, and then other random numbers are drawn."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.asked = asked

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.asked():
                continue
            x = F.dropout(layer(x), 0.5)
        return x.square().mean()


class Unread(nn.Module):
    """What is drawn is not read."""

    def __init__(self, draw: Callable[[], object], normed: bool) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(8, 8), draw
        self.norm = nn.BatchNorm1d(8) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.layer(x), 0.5)
        self.draw()
        x = F.dropout(self.norm(x), 0.5)
        self.draw()
        return F.dropout(x, 0.5).square().mean()


CERTAIN: list[Asked] = [
    lambda: torch.rand([]) < 0.0,
    lambda: torch.rand([]) < 0,
    lambda: torch.rand([]) >= 1.0,
    lambda: torch.rand(2)[1] > 1,
    lambda: torch.rand(1).squeeze() <= -0.5,
    lambda: torch.empty(1).uniform_(0, 1) >= 1,
    lambda: torch.empty(1).uniform_() < 0,
]
OPEN: list[Asked] = [
    lambda: torch.rand([]) < 0.1,
    lambda: torch.rand([]) <= 0,
    lambda: torch.randn([]) < 0,
    lambda: torch.empty(1).uniform_(-1, 1) < 0,
    lambda: torch.rand([]).mul(2) > 1,
]


def call() -> tuple[Tensor]:
    torch.manual_seed(0)
    return (torch.randn(4, 8, dtype=torch.float64),)


def assert_draws_like_one_device(module: nn.Module) -> None:
    args = call()
    captured = capture(module, args)
    assert captured.verified and not captured.notes
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "data", 2))
    torch.manual_seed(7)
    expected = equality.reference(module, args, 2)
    ours = equality.run(bundle, module, args, 2, equality.single_device(7))
    assert not equality.differences(ours, expected)


@pytest.mark.parametrize("asked", CERTAIN)
def test_what_is_certain_is_not_read_and_drawn(asked: Asked) -> None:
    assert_draws_like_one_device(Dropping(asked).double())


@pytest.mark.parametrize("asked", OPEN)
def test_what_is_not_certain_is_a_value(asked: Asked) -> None:
    with pytest.raises(sw.CaptureError, match="SW0102"):
        capture(Dropping(asked).double(), call())


UNREAD: list[Callable[[], object]] = [
    lambda: torch.rand(3),
    lambda: torch.randn(3, dtype=torch.float64),
    lambda: torch.empty(2).normal_(),
    lambda: torch.empty(2).uniform_(2, 3),
    lambda: [torch.rand(1), torch.randn(20)],
]


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("draw", UNREAD)
def test_what_is_drawn_and_not_read_is_drawn(draw: Callable[[], object], normed: bool) -> None:
    """A norm's statistics make PyTorch write the graph anew, and drop what nobody reads."""
    assert_draws_like_one_device(Unread(draw, normed).double())
