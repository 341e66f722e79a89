"""Buffers that are updated under `torch.utils.checkpoint`: backward does so again, and so do programs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import shardwright as sw
from shardwright.capture import capture
from shardwright.errors import CaptureError, RuntimeFault
from shardwright.runtime import run_local

torch.set_num_threads(1)
X = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """A linear layer, two norms, a head; a counter and a scale that are buffers."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor], momentum: float | None = 0.3) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(6, 6), nn.Linear(6, 1)
        self.norm, self.other = (nn.BatchNorm1d(6, momentum=momentum) for _ in range(2))
        self.register_buffer("scale", torch.ones(6))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self, self.linear(x)).tanh()).square().mean()


def again(module: Callable[..., Tensor], *args: Any) -> Tensor:
    return checkpoint(module, *args, use_reentrant=False)


def made(body: Callable[[Any, Tensor], Tensor], momentum: float | None = 0.3) -> Model:
    torch.manual_seed(0)
    return Model(body, momentum).double()


def loop(model: nn.Module, step: Callable[[Any], Any], steps: int = 3) -> None:
    made = (
        sw.optimizer if isinstance(model, sw.ParallelModule) else lambda m, kind, lr: kind(m.parameters(), lr)
    )
    optimizer = made(model, torch.optim.SGD, lr=0.1)
    for _ in range(steps):
        step(model)
        optimizer.step()
        optimizer.zero_grad()


def parallel(model: nn.Module, do: Callable[[Any], Any], plan: str = "data", ranks: int = 2) -> list[Any]:
    models = [copy.deepcopy(model) for _ in range(ranks)]

    def rank(number: int, comm: Any) -> Any:
        model = sw.parallelize(models[number], (X,), plan=plan, comm=comm, cache=False, progress=False)
        return do(model), model.full_state_dict()

    return run_local(ranks, rank)


def check(model: nn.Module, plan: str = "data") -> None:
    one = copy.deepcopy(model)
    loop(one, lambda m: m(X).backward())
    for _, state in parallel(model, lambda m: loop(m, lambda m: m(X).backward()), plan):
        same(state, one.state_dict())


def same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-9, atol=1e-11, msg=name)


def nested(m: Any, x: Tensor) -> Tensor:
    return again(lambda h: again(m.norm, m.other(h)).tanh(), x)


def last(m: Any, x: Tensor) -> Tensor:
    """PyTorch runs the outer one again up to what it needs of that, and the inner one by itself."""
    return again(lambda h: again(m.norm, m.other(h)) * 2, x)


BODIES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a norm": lambda m, x: again(m.norm, x),
    "reentrant": lambda m, x: checkpoint(m.norm, x, use_reentrant=True),
    "two in a row": lambda m, x: again(m.other, again(m.norm, x)),
    "two in one": lambda m, x: again(lambda h: m.other(m.norm(h).relu()), x),
    "one inside of another": nested,
    "one norm twice in one": lambda m, x: again(lambda h: m.norm(m.norm(h) * 2), x),
    "one norm in two": lambda m, x: again(m.norm, again(m.norm, x).relu() * 3),
    "also outside": lambda m, x: m.norm(again(m.norm, m.norm(x) * 2).relu() * 3),
    "a counter of its own": lambda m, x: again(lambda h: (m.scale.mul_(0.5), m.norm(h))[1], x),
    "without gradients": lambda m, x: x + again(m.norm, x.detach()).detach(),
}


@pytest.mark.parametrize("name", BODIES)
def test_is_what_one_device_has(name: str) -> None:
    check(made(BODIES[name]))


@pytest.mark.parametrize("name", ["a norm", "one inside of another"])
def test_averages_of_all_batches(name: str) -> None:
    check(made(BODIES[name], None))


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_momentum_that_keeps_all_or_nothing(momentum: float) -> None:
    check(made(BODIES["a norm"], momentum))


@pytest.mark.slow
def test_micro_batches_follow_each_other() -> None:
    model = made(BODIES["two in one"])
    one, (first, second) = copy.deepcopy(model), (X[:4], X[4:])

    def step(m: nn.Module) -> None:
        for part in (first, second):
            (m(part) / 2).backward()

    loop(one, step)
    for _, state in parallel(model, lambda m: loop(m, lambda m: m.train_step([first, second]))):
        same(state, one.state_dict())


def test_under_a_pipeline() -> None:
    model = made(BODIES["a norm"])
    one = copy.deepcopy(model)
    loop(one, lambda m: m(X).backward())
    for _, state in parallel(model, lambda m: loop(m, lambda m: m.train_step(X)), "stages:2"):
        same(state, one.state_dict())


@pytest.mark.slow
def test_a_forward_without_gradients_updates_once() -> None:
    model = made(BODIES["a norm"])
    one = copy.deepcopy(model)

    def do(m: Any) -> list[str]:
        with torch.no_grad():
            m(X)
        loop(m, lambda m: m(X).backward(), 1)
        with torch.no_grad():
            m(X)
        m.eval()
        m(X).backward()
        return getattr(m, "programs", [])

    do(one)
    for programs, state in parallel(model, do):
        same(state, one.state_dict())
        assert sum("without a backward" in line for line in programs) == 1, programs


def test_a_forward_whose_backward_never_comes_is_refused() -> None:
    def do(m: Any) -> str:
        before = m.full_state_dict()
        m(X)
        with pytest.raises(RuntimeFault) as error:
            m(X)
        with pytest.raises(RuntimeFault):
            m.full_state_dict()
        m.load_full_state_dict(before)
        m(X).backward()
        return error.value.code

    assert {code for code, _ in parallel(made(BODIES["a norm"]), do)} == {"SW0868"}


def late(m: Any, h: Tensor) -> Tensor:
    result = m.norm(h)
    with torch.no_grad():
        m.scale.mul_(0.9)
    return result


@pytest.mark.slow
def test_what_comes_after_all_that_is_saved_is_not_repeated_and_refused() -> None:
    model = made(lambda m, x: again(lambda h: late(m, h), x))
    with pytest.raises(CaptureError) as error:
        capture(model, (X,))
    assert error.value.code == "SW0147" and "scale" in str(error.value.why)
    with set_checkpoint_early_stop(False):
        assert capture(model, (X,)).for_backward


def scaled(m: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        m.scale.mul_(0.9)
    return m.norm(h * m.scale)


class Loss(nn.Module):
    """A loss, and another result that leads to a norm which the loss does not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Any:
        h = self.linear(x)
        return h.square().mean(), again(self.norm, h)


REFUSED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "read by what has a gradient": lambda m, x: again(lambda h: scaled(m, h), x),
    "other random numbers": lambda m, x: checkpoint(
        lambda h: m.norm(F.dropout(h)), x, use_reentrant=False, preserve_rng_state=False
    ),
    "not all of it is repeated": last,
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name: str) -> None:
    refused(made(REFUSED[name]))


def test_of_another_result_than_the_loss_is_refused() -> None:
    refused(Loss().double())


def refused(model: nn.Module) -> None:
    with pytest.raises(CaptureError) as error:
        capture(model, (X,))
    assert error.value.code == "SW0147" and error.value.place, error.value


def test_dropout_is_the_same_again() -> None:
    captured = capture(made(lambda m, x: again(lambda h: m.norm(F.dropout(h)), x)), (X,))
    assert captured.verified and captured.for_backward


@pytest.mark.slow
def test_other_models_have_one_program_with_and_without_gradients() -> None:
    assert capture(made(lambda m, x: m.norm(x)), (X,)).for_backward is None
    assert capture(made(lambda m, x: again(m.linear, x)), (X,)).for_backward is None
    with torch.no_grad():
        assert capture(made(BODIES["a norm"]), (X,)).for_backward is False


def test_a_reentrant_one_whose_arguments_have_no_gradient_gives_none() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.head = nn.Linear(6, 6), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.linear, x, use_reentrant=True)).square().mean()

    torch.manual_seed(0)
    check(First().double())
