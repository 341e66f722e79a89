"""Conjugates and negatives, which PyTorch only notes on a tensor: in a graph they are values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import shardwright as sw
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture
from shardwright.capture.state.memory import identity
from shardwright.errors import CaptureError
from shardwright.runtime import run_local
from shardwright.runtime.guards.part_gradients import writable
from shardwright.runtime.programs.cuts import padded

torch.set_num_threads(1)
X = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Complex(nn.Module):
    def __init__(self, body: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.c = nn.Parameter(torch.randn(5, 4, dtype=torch.complex128))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.c, x)


def transposed(c: Tensor, x: Tensor) -> Tensor:
    return (c.mH @ c).imag.tanh().sum() + (c.adjoint().conj() @ x[:5, :1].to(c.dtype)).abs().sum()


def resolved(c: Tensor, x: Tensor) -> Tensor:
    return torch.view_as_real(c.conj().resolve_conj()).sin().sum() * x.mean() + c.abs().sum()


BODIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the imaginary part": lambda c, x: torch.conj(c).imag.sin().sum() * x.sum(),
    "the real part": lambda c, x: c.conj().real.sin().sum() + x.sum() * c.real.sum(),
    "a product": lambda c, x: (x.to(c.dtype) @ c).abs().pow(2).sum() + (c * c.conj()).real.sum(),
    "transposed": transposed,
    "resolved": resolved,
    "a negative": lambda c, x: (c.conj().imag.resolve_neg() * c.conj().imag).sum() * x.sum(),
}


@pytest.mark.parametrize("name", BODIES)
def test_under_random_plans(name: str) -> None:
    module = Complex(BODIES[name])
    captured = capture(module, (X,))
    assert "aten._conj.default" not in captured.graph_text and "_neg_view" not in captured.graph_text
    graph, expected = Graph(captured.graph_text), equality.reference(module, (X,))
    for seed in range(8):
        plan = Plan.random(graph, 2 + seed % 3, seed)
        compiled = compile(plan)
        bundle = Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")
        equality.assert_equal(equality.run(bundle, module, (X,)), expected, f"{name}, {seed}")


def test_the_conjugate_of_a_conjugate_costs_nothing() -> None:
    for body in (BODIES["the real part"], lambda c, x: c.conj().conj().abs().sum() * x.sum()):
        assert "aten._conj" not in capture(Complex(body), (X,)).graph_text


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(4, 5, dtype=torch.complex128))

    def forward(self, z: Tensor) -> Tensor:
        return ((z @ self.w).imag + (self.w * z.sum()).real.sum()).square().mean()


def test_an_input_that_is_noted_so() -> None:
    z = torch.randn(6, 4, dtype=torch.complex128, generator=torch.Generator().manual_seed(2))
    for given in (z.conj(), torch.complex(z.conj().imag, z.real)):
        module = Reads()
        expected = module(given)
        models = [copy.deepcopy(module) for _ in range(2)]

        def rank(number: int, comm: Any) -> Tensor:
            options: dict[str, Any] = {"plan": "data", "comm": comm, "cache": False, "progress": False}
            return sw.parallelize(models[number], (given,), **options)(given).detach()  # noqa: B023

        for actual in run_local(2, rank):
            torch.testing.assert_close(actual, expected.detach())


def test_memory_of_a_conjugate_is_not_the_same_tensor() -> None:
    z = torch.randn(3, dtype=torch.complex128)
    assert identity(z) == identity(z.detach()) and identity(z) != identity(z.conj())
    assert identity(z.imag) != identity(z.conj().imag)


class Shares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("z", torch.randn(4, dtype=torch.complex128))
        self.register_buffer("other", self.z.conj())

    def forward(self, x: Tensor) -> Tensor:
        self.z.mul_(0.5)
        return (x.sum() * self.z * self.other.imag).abs().sum()


def test_buffers_of_one_memory_are_refused_when_one_changes() -> None:
    with pytest.raises(CaptureError) as error:
        capture(Shares(), (X,))
    assert error.value.code == "SW0136"


def test_messages_and_gradients_are_values() -> None:
    z = torch.randn(3, dtype=torch.complex128)
    for noted in (z.conj(), z.conj().imag):
        for made in (padded(noted, 3), writable(noted)):
            assert not (made.is_conj() or made.is_neg())
            assert torch.equal(made, noted)
