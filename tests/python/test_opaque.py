"""What runs as the Python that it was: custom autograd Functions, and modules that are not traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
from shardwright import Graph, Plan
from shardwright.capture import Captured, capture
from shardwright.compiling import compile_plan
from shardwright.further import skeleton_of

torch.set_num_threads(1)

PLANS = ("data", "zero3", "data x recompute")


# ---- Functions ---------------------------------------------------------------------------------


class Straight(torch.autograd.Function):
    """Rounds, with another gradient than its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: float) -> Tensor:
        return (x * steps).round() / steps

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * grad, None


class Several(torch.autograd.Function):
    """Several results, one of them nothing and one a number; plain arguments in a list."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, options: Any) -> Any:
        assert options == [True, None, torch.float32, (1, -2.5), "a 'word'"]
        return x @ w, None, x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        x, w = ctx.saved_tensors
        return 3 * (grad @ w.T), x.transpose(-1, -2) @ grad, None


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return -ctx.by * grad, None


class OneGradient(torch.autograd.Function):
    """Of two tensors one has no gradient, though it could."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


bound_long_before = Straight.apply


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + Straight.apply(self.linear(x), 4.0)


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.layers = nn.ModuleList([Rounded(), Rounded()])
        self.w = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = bound_long_before(self.first(x), 4.0)
        for layer in self.layers:
            y = layer(y)
        with torch.no_grad():
            self.mean.add_(Straight.apply(y, 8.0).mean(0))
        z, none, best = Several.apply(y, self.w, [True, None, torch.float32, (1, -2.5), "a 'word'"])
        assert none is None
        z = self.second(Reverse.apply(z, 0.5)) + best[:, None]
        return OneGradient.apply(z, self.third(z)).pow(2).mean()


# ---- modules -----------------------------------------------------------------------------------


class Router(nn.Module):
    """Reads a value; takes a number, a buffer that changes and a table that does not; gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("table", torch.ones(8), persistent=False)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        x = x @ self.w if x.sum() > 0 else x * scale * self.w.diagonal()
        self.seen += 1
        return {"y": x * self.table, "aux": (x**2).mean()}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.router = nn.Linear(8, 8), Router()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.router(self.linear(x), scale=2.0)
        return x + found["y"], found["aux"]


class Masked(nn.Module):
    """A loss over some rows, which is of one size however many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        return self.head(rows).pow(2).sum() / max(len(rows), 1)


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.out, self.loss = nn.Linear(8, 8), Masked()

    def forward(self, x: Tensor) -> Tensor:
        aux: Any = 0
        for block in self.blocks:
            x, one = block(x)
            aux = aux + one
        return self.loss(self.out(x)) + 0.1 * aux


class Inner(nn.Module):
    """Gradients inside of a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        energy = self.linear(x).tanh().sum()
        [force] = torch.autograd.grad(energy, x, create_graph=True)
        return force


class Forces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(8, 8), nn.ModuleList([Inner(), Inner()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x)
        return x.pow(2).mean()


MODELS: dict[str, Callable[[], nn.Module]] = {"functions": Functions, "routed": Routed, "forces": Forces}


@functools.cache
def captured_model(name: str) -> tuple[nn.Module, tuple[Tensor], Captured]:
    torch.manual_seed(3)
    model, args = MODELS[name]().double(), (torch.randn(4, 8, dtype=torch.float64),)
    return model, args, capture(model, args)


def targets(captured: Captured) -> list[str]:
    return [op.target for op in Graph(captured.graph_text).operators]


@pytest.mark.parametrize("name", MODELS)
def test_capture_is_compared(name: str) -> None:
    _, _, captured = captured_model(name)
    assert captured.verified
    assert {"functions": 7, "routed": 3, "forces": 2}[name] == sum(
        target.startswith("shardwright.") for target in targets(captured)
    )


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_programs_train_as_one_device(name: str, plan: str) -> None:
    model, args, captured = captured_model(name)
    expected = equality.reference(model, args)
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), plan, 2))
    options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
    equality.assert_equal(equality.run(bundle, model, args, options=options), expected)


@pytest.mark.parametrize("name", ["functions", "routed"])
def test_pipelines_train_as_one_device(name: str) -> None:
    model, args, captured = captured_model(name)
    batches = equality.micro_batches(args, 4)
    expected = equality.steps_reference(model, batches)
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "stages:2 x 1f1b", 2))
    options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
    equality.assert_equal(equality.run_steps(bundle, model, batches, options=options), expected)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", MODELS)
def test_random_plans_train_as_one_device(name: str, seed: int) -> None:
    model, args, captured = captured_model(name)
    expected = equality.reference(model, args)
    bundle, _ = compile_plan(captured, Plan.random(Graph(captured.graph_text), 3, seed))
    options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
    equality.assert_equal(equality.run(bundle, model, args, options=options), expected)
