"""Several programs over the same shards: evaluation, other shapes, other arguments; float64, threads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
import models
import shardwright as sw
from shardwright.runtime import ParallelModule, run_local
from shardwright.start.further_programs import compiler_of
from shardwright.start.planning import PlanLike
from shardwright.start.starter import Starter

torch.set_num_threads(1)

PLANS = [("data", 2), ("data", 4), ("megatron", 2), ("data:2 x megatron:2", 4), ("zero1", 2), ("zero3", 4)]


class Tagger(nn.Module):
    """The head is split by words where there is a loss, so an evaluation needs it in other parts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 30)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor | None]:
        x = self.embed(tokens)
        x = self.norm(x.flatten(0, 1)).view(x.shape)
        x = x + self.down(F.gelu(self.up(x)))
        if not self.training:
            x = self.drop(x)
        logits = self.head(x)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def tagger() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Tagger().double(), (torch.randint(30, (8, 6)), torch.randint(30, (8, 6)))


def on_ranks(
    module: nn.Module,
    args: tuple[Any, ...],
    plan: PlanLike,
    devices: int,
    body: Callable[[ParallelModule], Any],
    later: PlanLike | None = None,
) -> list[Any]:
    """What `body` gives on each rank of a model whose further programs follow the plan, or a later one."""

    def rank(_: int, comm: Any) -> Any:
        model = sw.parallelize(module, args, plan=plan, comm=comm)
        if further is not None:
            model.variants._compile = compiler_of(comm, further)
        return body(model)

    further = None
    if later is not None:
        further = Starter(later, devices, 1, {"outputs": "loss"})
        further.first(module, args, None)
    return run_local(devices, rank)


def loop(
    model: Any, optimizer: torch.optim.Optimizer, step: Callable[[Any], Tensor], args: Any
) -> list[Tensor]:
    """Training with a last short batch and other lengths, and evaluation with and without labels."""
    tokens, labels = args
    seen = []
    for batch in [
        (tokens, labels),
        (tokens[:5], labels[:5]),
        (tokens[:, :4], labels[:, :4]),
        (tokens, labels),
    ]:
        optimizer.zero_grad()
        seen.append(step(batch).detach())
        optimizer.step()
        model.eval()
        with torch.no_grad():
            seen.append(model(tokens[:3], labels[:3])["loss"])
            seen.append(model(tokens[:2])["logits"])
        model.train()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_a_loop_with_evaluation_and_short_batches(plan: str, devices: int) -> None:
    plain, args = tagger()

    def parallel(model: ParallelModule) -> tuple[list[Tensor], dict[str, Tensor]]:
        adamw = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
        return loop(model, adamw, model.train_step, args), model.full_state_dict()

    ranks = on_ranks(plain, args, plan, devices, parallel)

    def step(batch: Any) -> Tensor:
        loss = plain(*batch)["loss"]
        loss.backward()
        return loss

    expected = loop(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), step, args)
    for seen, state in ranks:
        for ours, theirs in zip(seen, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-11, msg=name)


def random(seed: int) -> Callable[..., sw.Plan]:
    return lambda graph, _draft, devices: sw.Plan.random(graph, devices, seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "later"),
    [
        ("data", "megatron"),
        ("megatron", "data"),
        ("zero3", "megatron"),
        ("data", "zero3"),
        *((random(n), random(n + 50)) for n in range(6)),
    ],
)
def test_what_is_borrowed_comes_and_goes_back(plan: PlanLike, later: PlanLike) -> None:
    """Further programs under another plan: they read, and train, other parts than the model holds."""
    plain, args = tagger()
    borrowed: list[str] = []

    def parallel(model: ParallelModule) -> tuple[list[Tensor], dict[str, Tensor]]:
        sgd = sw.optimizer(model, torch.optim.SGD, lr=0.1, momentum=0.9)
        seen = loop(model, sgd, model.train_step, args)
        for variant in chain.from_iterable(model.variants._known.values()):
            if variant.borrowed:
                borrowed.extend(t.names[0] for t in variant.borrowed.tensors)
        return seen, model.full_state_dict()

    ranks = on_ranks(plain, args, plan, 2, parallel, later=later)
    assert borrowed

    def step(batch: Any) -> Tensor:
        loss = plain(*batch)["loss"]
        loss.backward()
        return loss

    expected = loop(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), step, args)
    for seen, state in ranks:
        for ours, theirs in zip(seen, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-11, msg=name)


def test_micro_batches_of_several_shapes_are_reduced_once_each() -> None:
    plain, args = tagger()
    tokens, labels = args
    batches = [args, (tokens[:3], labels[:3]), args, (tokens[:3], labels[:3])]

    def parallel(model: ParallelModule) -> tuple[Tensor, dict[str, Tensor], int]:
        loss = model.train_step(batches)
        reduced = [kind for kind, _, _ in model.issued if kind == "reduce_gradients"]
        held = {s.tensor.names[0]: s.data.grad for s in model.shards.held if s.tensor.kind == "param"}
        return loss, held, len(reduced)

    for loss, gradients, reduced in on_ranks(plain, args, "data", 2, parallel):
        again = copy.deepcopy(plain)
        losses = [again(*batch)["loss"] for batch in batches]
        (torch.stack(losses).mean()).backward()
        torch.testing.assert_close(loss, torch.stack(losses).mean().detach())
        for name, parameter in again.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-11, msg=name)
        assert reduced == 2


@pytest.mark.slow
def test_each_module_has_its_mode() -> None:
    """A frozen batch norm: only that module is in evaluation mode."""
    plain, args = models.resnet()

    def parallel(model: ParallelModule) -> tuple[Tensor, dict[str, Tensor]]:
        model.train()
        model.get_submodule("bn1" if hasattr(model, "bn1") else names[0]).eval()
        loss = equality.scalars(model(*args))[0]
        return loss.detach(), model.full_state_dict()

    names = [name for name, module in plain.named_modules() if isinstance(module, nn.BatchNorm2d)]
    ranks = on_ranks(plain, args, "data", 2, parallel)
    frozen = copy.deepcopy(plain)
    frozen.get_submodule("bn1" if hasattr(frozen, "bn1") else names[0]).eval()
    expected = equality.scalars(frozen(*args))[0]
    for loss, state in ranks:
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-9, atol=1e-11)
        for name, value in frozen.named_buffers():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.slow
def test_a_model_that_was_captured_in_evaluation_can_train() -> None:
    plain, args = tagger()
    plain.eval()

    def parallel(model: ParallelModule) -> tuple[Tensor, Tensor]:
        assert not model.training
        first = model(*args)["loss"].detach()
        model.train()
        return first, model.train_step(args)

    for first, second in on_ranks(plain, args, "megatron", 2, parallel):
        again = copy.deepcopy(plain)
        torch.testing.assert_close(first, again(*args)["loss"].detach(), rtol=1e-9, atol=1e-11)
        again.train()
        torch.testing.assert_close(second, again(*args)["loss"].detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_an_evaluation_between_steps_does_not_change_the_masks() -> None:
    module, args = models.gpt(dropout=0.3)

    def losses(evaluate: bool) -> Callable[[ParallelModule], list[float]]:
        def body(model: ParallelModule) -> list[float]:
            losses = []
            for _ in range(2):
                losses.append(equality.scalars(model(*args))[0].item())
                if evaluate:
                    model.eval()
                    model(*args)
                    model.train()
            return losses

        return body

    with_, without = (on_ranks(module, args, "data", 2, losses(flag)) for flag in (True, False))
    assert with_ == without
    assert with_[0][0] != with_[0][1]


def test_a_program_is_made_once() -> None:
    module, args = models.mlp()

    def body(model: ParallelModule) -> int:
        for size in (8, 5, 8, 5, 3, 5):
            model.train_step(tuple(x[:size] for x in args))
        return sum(map(len, model.variants._known.values()))

    assert on_ranks(module, args, "data", 2, body) == [3, 3]


@pytest.mark.slow
def test_many_shapes_are_worth_a_word() -> None:
    module, args = models.mlp()

    def body(model: ParallelModule) -> None:
        for size in range(1, 9):
            model(*(x[:size] for x in args))

    with pytest.warns(UserWarning, match="8 kinds of calls"):
        on_ranks(module, args, "replicate", 1, body)


def test_a_call_that_the_model_refuses_is_refused_on_all_ranks() -> None:
    module, args = models.mlp()

    def body(model: ParallelModule) -> str:
        with pytest.raises(sw.ShardwrightError) as caught:
            model(args[0], target=[args[1]])
        assert torch.isfinite(model(*args))
        return str(caught.value)

    first, second = on_ranks(module, args, "data", 2, body)
    assert first == second


@pytest.mark.slow
def test_what_is_borrowed_follows_changes_behind_autograds_back() -> None:
    """A moving average of weights, say, is often written through `.data`."""
    plain, args = tagger()

    def body(model: ParallelModule) -> Tensor:
        model.eval()
        with torch.no_grad():
            model(args[0])
            for parameter in model.parameters():
                parameter.data.mul_(1.5)
            return model(args[0])["logits"]

    of_ranks = on_ranks(plain, args, "megatron", 2, body, later="data")
    changed = copy.deepcopy(plain).eval()
    for parameter in changed.parameters():
        parameter.data.mul_(1.5)
    for logits in of_ranks:
        torch.testing.assert_close(logits, changed(args[0])["logits"].detach(), rtol=1e-9, atol=1e-11)
