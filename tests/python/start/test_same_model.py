"""What ranks must have in common besides batches: the model that they build, and steps that are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from shardwright.runtime import LocalComm, run_local

torch.set_num_threads(1)

X = torch.ones(4, 8)


class Net(nn.Module):
    def __init__(self, depth: int = 2, width: int = 16, p: float = 0.0):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.up, self.down, self.drop = nn.Linear(8, width), nn.Linear(width, 8), nn.Dropout(p)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) * self.scale
        return self.drop(self.down(torch.relu(self.up(x)))).square().mean()


def _frozen() -> Net:
    net = Net()
    net.up.weight.requires_grad_(False)
    return net


# What rank 2 builds, and what is said of it.
OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "deeper": (
        lambda: Net(depth=3),
        "rank 2 has `layers.2`: Linear(in_features=8, out_features=8, bias=True)",
    ),
    "shallower": (
        lambda: Net(depth=1),
        "rank 0 has `layers.1`: Linear(in_features=8, out_features=8, bias=True)",
    ),
    "wider": (lambda: Net(width=32), "rank 2 has `up`: Linear(in_features=8, out_features=32, bias=True)"),
    "in another dtype": (lambda: Net().double(), "rank 2 has `layers.0.weight`: (8, 8) of float64"),
    "frozen": (_frozen, "rank 2 has `up.weight`: (16, 8) of float32, frozen"),
    "with more dropout": (lambda: Net(p=0.5), "rank 2 has `drop`: Dropout(p=0.5, inplace=False)"),
    "no module": (lambda: torch.relu, "rank 2 has a builtin_function_or_method"),
}


@pytest.mark.parametrize("how", OTHERS)
def test_a_rank_that_builds_another_model_is_named_on_all(how: str) -> None:
    build, said = OTHERS[how]

    def rank(rank: int, comm: LocalComm) -> Any:
        with pytest.raises(sw.RuntimeFault) as caught:
            sw.parallelize(build() if rank == 2 else Net(), X, comm=comm)
        return caught.value

    errors = run_local(4, rank)
    assert {error.code for error in errors} == {"SW0833"}
    assert {error.what for error in errors} == {"rank 2 built another model than rank 0"}
    assert all(said in (error.why or "") for error in errors), errors[0].why


def test_an_overflow_that_a_scaler_finds_on_one_rank_is_found_on_all() -> None:
    def rank(rank: int, comm: LocalComm) -> Any:
        torch.manual_seed(0)
        model = sw.parallelize(Net(), X, plan="megatron", comm=comm)
        optimizer = sw.optimizer(model, torch.optim.SGD, lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        steps = []
        for step in range(2):
            before = [parameter.detach().clone() for parameter in model.parameters()]
            scaler.scale(model(X)).backward()
            parameter = dict(model.named_parameters())["up.weight"]
            assert parameter.grad is not None and parameter.shape == (8, 8)
            if step == rank == 1:
                parameter.grad[0, 0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            same = all(map(torch.equal, before, model.parameters()))
            steps.append((same, scaler.get_scale()))
        return steps

    assert run_local(2, rank) == [[(False, 8.0), (True, 4.0)]] * 2
