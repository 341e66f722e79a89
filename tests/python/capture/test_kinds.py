"""What operators give at run time is compared with the graph before others rely on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from shardwright.capture import capture
from shardwright.runtime import LocalComm, ParallelModule, run_local

torch.set_num_threads(1)

X = torch.randn(4, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.norm(self.up(x)))).square().mean()


def _refused(plan: Any, change: Any) -> list[sw.ShardwrightError]:
    """What ranks say whose operators give something else than the program's tables expect."""

    def rank(rank: int, comm: LocalComm) -> Any:
        model = sw.parallelize(Net(), X, plan=plan, comm=comm)
        model(X)
        model.worker.compared.clear()
        # As if the operator gave float32 where the graph says something else.
        object.__setattr__(change(model), "dtype", torch.float64)
        with pytest.raises(sw.RuntimeFault) as caught:
            model(X)
        return caught.value

    return run_local(2, rank)


def _buffer(model: ParallelModule) -> Any:
    return next(t for t in model.program.tensors.values() if "norm.running_mean" in t.names)


def _exchanged(model: ParallelModule) -> Any:
    forward = [number for kind, number, _ in model.issued if kind == "exchange"]
    return model.program.tensors[model.program.exchanges[forward[0]].tensor]


def test_a_buffer_gets_no_value_of_another_dtype() -> None:
    for error in _refused("data", _buffer):
        assert error.code == "SW0834"
        assert "norm.running_mean" in error.what
        assert "torch.float32, the graph says (16,) of torch.float64" in error.what
        assert (error.place or "").startswith("ranks_")


def test_an_exchange_begins_with_what_its_receivers_expect() -> None:
    graph = sw.Graph(capture(Net(), (X,)).graph_text)
    for error in _refused(sw.Plan.random(graph, 2, 3), _exchanged):
        assert error.code == "SW0834"
        assert "torch.float32, the graph says" in error.what
