"""What operators give does not depend on memory, on the device, or on how a gradient is stored."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equality import assemble, assert_equal, reference, train
from shardwright import CaptureError
from shardwright._core import Graph, Plan, compile
from shardwright.capture import Captured, capture
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources

X = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    def __init__(self, fn: Callable[..., Tensor], *more: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.fn = fn
        self.w = nn.Parameter(torch.randn(5, 8))
        self.more = nn.ModuleList(more)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x @ self.w, *self.more) if x.is_floating_point() else self.fn(x, *self.more)


def assert_same_in_parts(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    captured = capture(module, args, verify=True)
    graph = Graph(captured.graph_text)
    expected = reference(module, args)
    for plan in (Plan.named(graph, "replicate", 2), *(Plan.random(graph, 3, seed) for seed in range(4))):
        assert_equal(run(module, args, captured, plan), expected, plan.text)


def run(module: nn.Module, args: tuple[Tensor, ...], captured: Captured, plan: Plan) -> Any:
    compiled = compile(plan)
    program = load_program(dict(compiled.files), digest=compiled.digest, world=plan.devices)
    values = sources(copy.deepcopy(module), captured)

    def rank(rank: int, comm: Any) -> Any:
        return train(ParallelModule(program, comm, values, captured), args)

    return assemble(run_local(plan.devices, rank))


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda h: h.t().as_strided((8, 4), (4, 1)),
    "plain": lambda h: h.as_strided((2, 3), (9, 2), 4),
    "overlapping": lambda h: h.sin().as_strided((4, 3), (1, 2)),
    "permuted": lambda h: h.view(4, 2, 4).permute(1, 2, 0).as_strided((6, 5), (5, 1), 2),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides_are_those_that_the_model_has(name: str) -> None:
    read = STRIDES[name]
    assert_same_in_parts(Model(lambda h: (read(h).cumsum(1).sin() * 3).sum()), (X,))


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "beyond": lambda h: h[:2].as_strided((2, 8), (16, 1)),
    "of a slice": lambda h: h[1:].as_strided((3, 4), (8, 1)),
    "before": lambda h: h[1:].as_strided((2, 8), (8, 1), 0),
    "between": lambda h: h[:, ::2].as_strided((2, 2), (3, 1)),
    "written": lambda h: written(h),
}


def written(h: Tensor) -> Tensor:
    h = h.clone()
    h.as_strided((2, 2), (3, 1)).add_(1)
    return h


@pytest.mark.parametrize("name", REFUSED)
def test_what_lies_beside_a_tensor_is_refused(name: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Model(lambda h: REFUSED[name](h).sin().sum()), (X,))
    assert caught.value.code == "SW0135"
    assert "test_meaning.py" in str(caught.value.place)


def test_sparse_gradients_are_the_same_and_dense() -> None:
    table = nn.Embedding(9, 4, sparse=True)
    module = Model(lambda i, table: table(i).pow(2).mean(), table)
    dense = Model(lambda i, table: table(i).pow(2).mean(), nn.Embedding(9, 4))
    dense.load_state_dict(module.state_dict())
    indices = torch.tensor([[0, 3, 3], [8, 1, 0]])
    captured = capture(module, (indices,), verify=True)
    expected = reference(dense, (indices,))
    graph = Graph(captured.graph_text)
    for plan in (Plan.named(graph, "data", 2), Plan.random(graph, 2, 1)):
        assert_equal(run(module, (indices,), captured, plan), expected, plan.text)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("stats", [None, torch.float32])
def test_running_statistics_keep_their_type(dtype: torch.dtype, stats: torch.dtype | None) -> None:
    module = Model(lambda h, norm: norm(h).sin().float().mean(), nn.BatchNorm1d(8)).to(dtype)
    if stats is not None:
        module.more[0].float()
    captured = capture(module, (X.to(dtype),))
    line = next(text for text in captured.graph_text.splitlines() if "batch_norm" in text)
    made = line.split(" = ")[0]
    expected = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[stats or dtype]
    assert made.count(f"{expected}[8]") == 2, line


RECURRENT = list(
    itertools.product(
        ("LSTM", "GRU", "RNN"),
        ({}, {"batch_first": True}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}),
    )
)


@pytest.mark.parametrize("kind, options", RECURRENT, ids=lambda it: str(it))
def test_recurrent_layers_and_their_last_state_are_the_same(kind: str, options: dict[str, Any]) -> None:
    assert_same_in_parts(Recurrent(kind, options), (torch.randn(4, 3, 5, dtype=torch.float64),))


class Recurrent(nn.Module):
    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = getattr(nn, kind)(5, 6, **options).double()

    def forward(self, x: Tensor) -> Tensor:
        made, state = self.layer(x)
        last = state[0] if isinstance(state, tuple) else state
        return made.pow(2).mean() + last.sin().sum()
