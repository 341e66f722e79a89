"""`micro_batches=`: a whole batch, cut by rules, has the loss and the gradients of the single device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
import models
import shardwright as sw
import zoo
from shardwright import RuntimeFault, ShardwrightError
from shardwright.runtime import ParallelModule, run_local

torch.set_num_threads(1)

QUIET: dict[str, Any] = {"cache": False, "progress": False}


def gpt() -> Any:
    module, (idx, targets) = models.gpt(batch=8, bias=False)
    targets[5] = -1  # a micro-batch of one row that counts nothing
    return module, (idx, targets)


def of_transformers(make: Any) -> Any:
    module, args, kwargs = make()
    assert not args
    return module, kwargs


def llama() -> Any:
    return of_transformers(zoo.llama)


def t5() -> Any:
    return of_transformers(zoo.t5)


def vit() -> Any:
    return of_transformers(zoo.vit)


def arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((), dict(given)) if isinstance(given, dict) else (tuple(given), {})


def parallel(module: nn.Module, given: Any, comm: Any, plan: str, **options: Any) -> ParallelModule:
    args, kwargs = arguments(given)
    return sw.parallelize(copy.deepcopy(module), args, kwargs, plan=plan, comm=comm, **QUIET, **options)


def loss_of(outputs: Any) -> Tensor:
    return outputs if isinstance(outputs, Tensor) else equality.scalars(outputs)[0]


def alone(module: nn.Module, given: Any, rate: float = 0.1) -> tuple[Tensor, dict[str, Tensor]]:
    """One step of gradient descent, whose update is the gradient."""
    module = copy.deepcopy(module)
    args, kwargs = arguments(given)
    loss = loss_of(module(*args, **kwargs))
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=rate).step()
    return loss.detach(), {name: p.detach() for name, p in module.named_parameters()}


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-9, atol=1e-12)
    for name, value in expected[1].items():
        torch.testing.assert_close(
            actual[1][name], value, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


def step(model: ParallelModule, given: Any, rate: float = 0.1) -> tuple[Tensor, dict[str, Tensor]]:
    optimizer = sw.optimizer(model, torch.optim.SGD, lr=rate)
    loss = model.train_step(given)
    assert loss is not None
    optimizer.step()
    return loss, model.full_state_dict()


PLANS = [("data:2", 2), ("megatron:2", 2), ("zero3:2", 2)]


@pytest.mark.parametrize(("plan", "devices"), PLANS)
@pytest.mark.parametrize(("make", "number"), [(gpt, 2), (gpt, 4), (llama, 2), (t5, 2), (vit, 2)])
def test_a_step_is_that_of_the_whole_batch(make: Any, plan: str, devices: int, number: int) -> None:
    module, given = make()

    def body(_: int, comm: Any) -> Any:
        with zoo.widened():  # of this thread
            return step(parallel(module, given, comm, plan, micro_batches=number), given)

    with zoo.widened():
        expected = alone(module, given)
        for actual in run_local(devices, body):
            same(actual, expected)


def test_the_program_is_for_one_micro_batch() -> None:
    module, given = gpt()

    def body(_: int, comm: Any) -> Any:
        model = parallel(module, given, comm, "replicate", micro_batches=4)
        loss = model.train_step(given)
        return [t.shape for t in model.program.tensors.values() if t.kind == "input"], model.programs, loss

    shapes, programs, loss = run_local(1, body)[0]
    assert shapes == [(2, 16), (2, 16)] and len(programs) == 1
    torch.testing.assert_close(loss, alone(module, given)[0])


class Model(nn.Module):
    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6).double()
        self.loss = loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.linear(x), labels, self.linear.weight)


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)  # ranks are threads
    x = torch.randn(rows, 6, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, 6, (rows,), generator=generator)
    labels[: rows // 2 - 1] = HALF_IGNORED
    return x, labels


HALF_IGNORED = 2

LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "a mean": lambda y, t, w: y.square().mean(),
    "a sum": lambda y, t, w: y.square().sum(),
    "a sum of rows' means": lambda y, t, w: y.square().mean(1).sum(),
    "of ignored labels": lambda y, t, w: F.cross_entropy(y, t, ignore_index=HALF_IGNORED),
    "of ignored labels, and as much again": lambda y, t, w: (
        2 * F.cross_entropy(y, t, ignore_index=HALF_IGNORED)
    ),
    "likelihood": lambda y, t, w: F.nll_loss(F.log_softmax(y, 1), t, ignore_index=HALF_IGNORED),
    "labels that are moved": lambda y, t, w: F.cross_entropy(
        y, torch.where(t > 3, torch.full_like(t, -100), t)
    ),
    "with a penalty": lambda y, t, w: F.mse_loss(y, torch.ones_like(y)) + 0.1 * w.square().sum(),
    "of a sum": lambda y, t, w: F.cross_entropy(y, t, reduction="sum"),
}


@pytest.mark.parametrize("number", [1, 2, 8])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, number: int) -> None:
    module, given = Model(LOSSES[name]), batch()

    def body(_: int, comm: Any) -> Any:
        return step(parallel(module, given, comm, "megatron:2", micro_batches=number), given)

    expected = alone(module, given)
    for actual in run_local(2, body):
        same(actual, expected)


def test_a_result_that_nobody_reads_may_be_anything() -> None:
    """The places of what `topk` chooses."""
    module, given = Model(lambda y, t, w: y.topk(2)[0].square().mean()), batch()

    def body(_: int, comm: Any) -> Any:
        return step(parallel(module, given, comm, "data:2", micro_batches=2), given)

    expected = alone(module, given)
    for actual in run_local(2, body):
        same(actual, expected)


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "aten.sub.Tensor": (lambda y, t, w: (y - y.mean(0)).square().mean(), "into something else"),
    "aten.sort.default": (lambda y, t, w: y.sort(0)[0][0].mean(), "needs all rows of the batch"),
    "aten.sqrt.default": (lambda y, t, w: y.square().mean().sqrt(), "into something else"),
    "aten.div.Tensor": (lambda y, t, w: y.square().sum() / len(y), "is another operator for fewer rows"),
    "aten.add.Tensor": (lambda y, t, w: y.square().sum() + w.square().sum(), "into something else"),
    "aten.matmul.default": (lambda y, t, w: (y @ y.T).square().mean(), "needs all rows of the batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_the_batch_is_refused_by_name(name: str) -> None:
    loss, why = REFUSED[name]
    with pytest.raises(ShardwrightError) as caught:
        run_local(1, lambda _, comm: parallel(Model(loss), batch(), comm, "replicate", micro_batches=2))
    said = str(caught.value)
    assert "SW0360" in said and name in said and why in said and "test_micro_batches.py:" in said


@pytest.mark.slow
def test_batch_norm_is_refused() -> None:
    module, given = models.resnet()
    with pytest.raises(ShardwrightError, match=r"SW0360[\s\S]*changes the buffer"):
        run_local(1, lambda _, comm: parallel(module, given, comm, "replicate", micro_batches=2))


def test_a_loss_that_nobody_counts_is_no_number() -> None:
    module, given = Model(LOSSES["of ignored labels"]), (batch()[0], torch.full((8,), HALF_IGNORED))

    def body(_: int, comm: Any) -> Any:
        return parallel(module, given, comm, "replicate", micro_batches=2).train_step(given)

    assert run_local(1, body)[0].isnan()


def test_lists_of_batches_and_a_scale() -> None:
    """Each batch counts the same, whatever it counts; the scale is that of each batch."""
    module, batches = Model(LOSSES["of ignored labels"]), [batch(8), batch(4), batch(12)]

    def both(model: Any, scale: float | None) -> Any:
        return [p.grad.clone() for p in model.parameters()] if model else scale

    def expected(scale: float) -> list[Tensor]:
        plain = copy.deepcopy(module)
        for one in batches:
            (plain(*one) * scale).backward()
        return [p.grad for p in plain.parameters() if p.grad is not None]

    for scale in (None, 0.7):

        def body(_: int, comm: Any, scale: float | None = scale) -> Any:
            model = parallel(module, batches[0], comm, "data:2", micro_batches=4)
            return model.train_step(batches, scale), both(model, scale)

        losses = torch.stack([module(*one).detach() for one in batches])
        for loss, gradients in run_local(2, body):
            torch.testing.assert_close(loss, losses.mean())
            for gradient, wanted in zip(gradients, expected(1 / 3 if scale is None else scale), strict=True):
                torch.testing.assert_close(gradient.as_subclass(Tensor), wanted)


@pytest.mark.parametrize("number", [0, -1, 3, "4", 2.0, True, None])
def test_no_number_of_parts(number: Any) -> None:
    with pytest.raises(RuntimeFault, match="SW0845") as caught:
        run_local(
            1,
            lambda _, comm: parallel(
                Model(LOSSES["a sum"]), batch(), comm, "replicate", micro_batches=number
            ),
        )
    assert "give one of 1, 2, 4, 8" in str(caught.value)


def test_inputs_of_ranks_are_not_cut() -> None:
    options: dict[str, Any] = {"inputs": "local", "micro_batches": 2}
    with pytest.raises(RuntimeFault, match="SW0845"):
        run_local(1, lambda _, comm: parallel(Model(LOSSES["a sum"]), batch(), comm, "data", **options))


def test_a_batch_that_cannot_be_cut() -> None:
    module = Model(LOSSES["a sum"])  # not in threads, which would seed each other's draws

    def body(_: int, comm: Any) -> Any:
        model = parallel(module, batch(), comm, "data:2", micro_batches=4)
        for rows in (5, 1):
            with pytest.raises(RuntimeFault, match=f"SW0846.*batch of {rows} rows"):
                model.train_step(batch(rows))
        with pytest.raises(RuntimeFault, match="SW0846"):
            model.train_step((batch(4)[0], batch(6)[1]))
        return model.train_step(batch(6))

    for loss in run_local(2, body):
        torch.testing.assert_close(loss, module(*batch(6)).detach())
