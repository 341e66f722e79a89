"""Clipping by the norm of all ranks' gradients, and PyTorch's own clipping, which is caught."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_ as imported_early
from torch.nn.utils import clip_grad_value_, get_total_norm

import shardwright as sw
from runtime_programs import mlp
from shardwright import RuntimeFault
from shardwright.runtime import ParallelModule
from test_optimizer import BATCHES, PROGRAMS, close, on_ranks, plain_step

INF = float("inf")


@pytest.mark.parametrize("norm_type", [0.5, 1, 2, 3, INF, 0, -1, -INF])
@pytest.mark.parametrize("max_norm", [0.05, 100.0])
def test_any_norm_counts_each_gradient_once(norm_type: float, max_norm: float) -> None:
    plain = mlp()
    plain_step(plain, 0)
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm, norm_type)
    clipped = torch.cat([p.grad.flatten() for p in plain.parameters()])  # type: ignore[union-attr]

    def body(model: ParallelModule) -> tuple[Tensor, float]:
        model.train_step(BATCHES[0])
        norm = sw.clip_grad_norm_(model, max_norm, norm_type, foreach=False)
        again = sw.clip_grad_norm_(model, INF, 2, foreach=True)
        return norm, float(again)

    for name in PROGRAMS:
        for norm, again in on_ranks(name, body):
            close(norm, expected)
            assert norm.dtype == expected.dtype
            assert again == pytest.approx(float(clipped.norm()), rel=1e-9)


@pytest.mark.parametrize("norm_type", [1, 2, INF, 0, -INF])
@pytest.mark.parametrize("value", [math.nan, INF])
def test_what_is_not_finite_is_told_to_all_ranks(norm_type: float, value: float) -> None:
    plain = mlp()
    plain_step(plain, 0)
    plain.up.weight.grad[0, 0] = value  # type: ignore[index]
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0, norm_type)

    def body(model: ParallelModule) -> tuple[Tensor, str]:
        model.train_step(BATCHES[0])
        grad = dict(model.named_parameters())["up.weight"].grad if model.comm.rank == 0 else None
        if grad is not None:
            grad[0, 0] = value
        code = "none"
        try:
            sw.clip_grad_norm_(model, 1.0, norm_type, error_if_nonfinite=True)
        except RuntimeFault as error:
            code = error.code
        return sw.clip_grad_norm_(model, 1.0, norm_type), code

    finite = bool(expected.isfinite())
    for norm, code in on_ranks("megatron", body):
        torch.testing.assert_close(norm, expected, equal_nan=True)
        assert code == ("none" if finite else "SW0763")


def test_a_model_around_parallelized_ones_is_clipped_as_one() -> None:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.scale = inner, nn.Parameter(torch.full((), 2.0, dtype=torch.float64))

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.inner(x, t) * self.scale

    plain = Outer(mlp())
    plain_step(plain, 0)
    expected = {
        p: torch.nn.utils.get_total_norm([x.grad for x in plain.parameters()], p) for p in (0, 2, INF)
    }  # type: ignore[misc]

    def body(model: ParallelModule) -> dict[float, Tensor]:
        outer = Outer(model)
        plain_step(outer, 0)
        return {p: sw.clip_grad_norm_(outer, INF, p) for p in (0, 2, INF)}

    for name in ("megatron", "data"):
        for norms in on_ranks(name, body):
            for p, norm in norms.items():
                close(norm, expected[p])


def test_pytorchs_own_clipping_is_right_where_every_rank_has_all_gradients_whole() -> None:
    plain = mlp()
    plain_step(plain, 0)
    expected = get_total_norm([p.grad for p in plain.parameters()])  # type: ignore[misc]
    imported_early(plain.parameters(), 0.05)
    clipped = [p.grad for p in plain.parameters()]

    def body(model: ParallelModule) -> None:
        model.train_step(BATCHES[0])
        for norm in _norms(model)[3:4]:
            close(norm(), expected)
        close(imported_early(model.parameters(), 0.05), expected)
        for parameter, grad in zip(model.parameters(), clipped, strict=True):
            close(parameter.grad, grad)  # type: ignore[arg-type]

    on_ranks("data", body)


def _norms(model: nn.Module) -> list[Callable[[], Any]]:
    return [
        lambda: imported_early(model.parameters(), 1.0),
        lambda: torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0, foreach=False),
        lambda: torch.nn.utils.clip_grad.clip_grad_norm_(next(model.parameters()), 1.0),
        lambda: get_total_norm([p.grad for p in model.parameters() if p.grad is not None]),
        lambda: get_total_norm(model.parameters()),
    ]


def test_plain_norms_of_a_parallelized_model_are_caught() -> None:
    def body(model: ParallelModule) -> None:
        model.train_step(BATCHES[0])
        before = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
        for norm in _norms(model):
            with pytest.raises(RuntimeFault, match="SW0762"):
                norm()
        for p, grad in zip(model.parameters(), before, strict=True):
            assert torch.equal(p.grad, grad)  # type: ignore[arg-type]
        other = mlp()
        plain_step(other, 0)
        for norm in _norms(other):
            norm()
        clip_grad_value_(model.parameters(), 1e-3)
        plainly = [p.grad.as_subclass(Tensor) for p in model.parameters()]  # type: ignore[union-attr]
        largest = [float(grad.abs().max()) for grad in plainly]
        assert functools.reduce(operator.ior, [x == 1e-3 for x in largest])
        assert max(largest) <= 1e-3

    on_ranks("megatron", body)
