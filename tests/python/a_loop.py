"""A model and the loops that tests train it with, on two ranks and on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from shardwright.runtime import LocalComm, ParallelModule, run_local

ROWS = 8
BATCHES = [
    tuple(torch.randn(2, ROWS, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    for seed in range(4)
]
PLANS = ["data", "megatron", "zero3"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.BatchNorm1d(8), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(torch.relu(self.up(self.norm(x)))))


class Net(nn.Module):
    doubled = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.config = {"width": 8}
        self.alpha = 1.0
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 8)
        self.double()

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        out = self.head(self.blocks(x)) * self.alpha * getattr(self, "extra", 1.0)
        return {"loss": F.mse_loss(out, target), "logits": out}

    @property
    def width(self) -> int:
        return self.head.weight.shape[0]

    def count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        rest = [p for p in self.parameters() if p.dim() < 2]
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest}], lr=0.01)

    def penalty(self) -> Tensor:
        return sum(p.square().sum() for p in self.parameters())  # type: ignore[return-value]

    def generate(self, x: Tensor) -> Tensor:
        return self.blocks(x)

    def step_loss(self, x: Tensor, target: Tensor) -> Tensor:
        return self(x, target)["loss"]


Body = Callable[[Any, nn.Module], Any]


def on_ranks(body: Body, plan: str = "megatron", net: Callable[[], nn.Module] = Net, **options: Any) -> Any:
    """What `body(model, module)` gives on rank 0 of two; every rank builds a module of its own."""
    modules = [net() for _ in range(2)]

    def rank(rank: int, comm: LocalComm) -> Any:
        module = modules[rank]
        quiet: dict[str, Any] = {"cache": False, "progress": False}
        return body(sw.parallelize(module, BATCHES[0], plan=plan, comm=comm, **quiet, **options), module)

    return run_local(2, rank)[0]


def refused(code: str, body: Body, plan: str = "megatron", **options: Any) -> str:
    """The text of an error that `body` meets on every rank."""

    def meets(model: Any, module: nn.Module) -> str:
        with pytest.raises(sw.ShardwrightError) as error:
            body(model, module)
        assert error.value.code == code, error.value
        return str(error.value)

    return str(on_ranks(meets, plan, **options))


def train(
    model: Any, each: Callable[[Any, int], Any] = lambda *_: None, optimizer: Any = None
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses, and the state at the end; `each` is done before every step."""
    if isinstance(model, ParallelModule):
        optimizer = optimizer or sw.optimizer(model, torch.optim.SGD, lr=0.1)
    else:
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, batch in enumerate(BATCHES):
        each(model, step)
        loss = model(*batch)["loss"]
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    state = model.full_state_dict() if isinstance(model, ParallelModule) else model.state_dict()
    return losses, state


def assert_equal_training(actual: Any, expected: Any) -> None:
    assert actual[0] == pytest.approx(expected[0], rel=1e-9)
    for name, value in expected[1].items():
        torch.testing.assert_close(actual[1][name], value, rtol=1e-8, atol=1e-10)
