"""Copies of a parallel model, its state and its outputs are what they are on one device, or refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import shardwright as sw
from a_loop import BATCHES, PLANS, Body, Net, assert_equal_training, on_ranks, refused, train
from shardwright.runtime import ParallelModule

torch.set_num_threads(1)


# ---- saving ----------------------------------------------------------------------------------------


def _saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


SAVES: dict[str, Body] = {
    "the state dict": lambda m, _: _saved(m.state_dict()),
    "in a dict": lambda m, _: _saved({"model": {k: v.cpu() for k, v in m.state_dict().items()}}),
    "in an ordinary model": lambda m, _: _saved(nn.ModuleDict({"inner": m}).state_dict()),
    "the model": lambda m, _: _saved(m),
    "parameters": lambda m, _: _saved(dict(m.named_parameters())),
    "the optimizer": lambda m, _: _saved({"o": sw.optimizer(m, torch.optim.AdamW).state_dict()}),
}


@pytest.mark.parametrize("what", SAVES)
def test_parts_are_not_saved_under_the_models_names(what: str) -> None:
    text = refused("SW0800", SAVES[what])
    assert "full_state_dict(rank0_only=True, cpu=True)" in text and "sw.save" in text


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_part_of_a_gradient_is_one_and_may_be_saved_as_a_plain_tensor(copied: Any) -> None:
    def body(model: Any, _: nn.Module) -> None:
        model.train_step(BATCHES[0])
        grad = model.blocks[0].up.weight.grad
        copy_of_it = copied(grad)
        assert torch.equal(copy_of_it, grad) and (copy_of_it.data_ptr() == grad.data_ptr()) == (
            copied is copy.copy
        )
        with pytest.raises(sw.RuntimeFault, match="SW0762"):
            copy_of_it.norm()
        file = io.BytesIO()
        torch.save(copy_of_it.as_subclass(Tensor), file)
        file.seek(0)
        assert torch.equal(torch.load(file), grad)

    on_ranks(body)


def test_a_model_that_is_whole_on_every_rank_has_the_plain_state_dict() -> None:
    def body(model: Any, module: nn.Module) -> None:
        train(model)
        plain = Net()
        plain.load_state_dict(torch.load(_saved(model.state_dict())))
        assert torch.equal(plain.head.weight, model.head.weight)
        _saved(sw.optimizer(model, torch.optim.AdamW).state_dict())

    on_ranks(body, "data")


@pytest.mark.parametrize("plan", PLANS)
def test_a_model_takes_the_single_devices_state_dict(plan: str) -> None:
    other = Net()
    with torch.no_grad():
        other.head.weight.add_(1)
    part = {"head.weight": other.head.weight.detach() * 3, "unknown": torch.zeros(1)}

    def body(model: Any, _: nn.Module) -> None:
        model.load_state_dict(other.state_dict())
        full = model.full_state_dict()
        assert all(torch.equal(full[name], value) for name, value in other.state_dict().items())
        keys = model.load_state_dict(part, strict=False)
        assert keys.unexpected_keys == ["unknown"] and "head.bias" in keys.missing_keys
        assert torch.equal(model.full_state_dict()["head.weight"], part["head.weight"])
        with pytest.raises(sw.RuntimeFault, match="SW0710"):
            model.load_state_dict(part)

    on_ranks(body, plan)


# ---- outputs that do not leave ---------------------------------------------------------------------

USES: list[Callable[[Any], Any]] = [
    lambda x: x[0], lambda x: x + 1, lambda x: 1 - x, lambda x: x.argmax(-1), lambda x: x.shape,
    lambda x: bool(x), lambda x: list(x), lambda x: len(x), lambda x: float(x), lambda x: F.softmax(x, -1),
    lambda x: torch.stack([x]), lambda x: x @ torch.ones(8), lambda x: torch.ones(8) + x, lambda x: x > 0,
    lambda x: x(), lambda x: -x,
]  # fmt: skip


def test_an_output_that_does_not_leave_says_what_to_write() -> None:
    def body(model: Any, _: nn.Module) -> None:
        out = model(*BATCHES[0])
        assert out["loss"].dim() == 0 and "logits" in repr(out["logits"])
        for use in USES:
            with pytest.raises(sw.RuntimeFault, match="`logits` is used") as error:
                use(out["logits"])
            assert error.value.code == "SW0802" and 'outputs=["logits"]' in str(error.value)
        copy.deepcopy(out["logits"])

    on_ranks(body, "data")


# ---- copies, methods, compile ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_a_copy_is_another_model_with_the_same_values(plan: str) -> None:
    expected = train(Net())

    def body(model: Any, _: nn.Module) -> Any:
        copied = copy.deepcopy(model)
        first = train(model)
        second = train(copied)
        assert copied.head.weight.data_ptr() != model.head.weight.data_ptr()
        assert model.train_step(BATCHES[0]) == copied.train_step(BATCHES[0])
        assert_equal_training(first, expected)
        return second

    assert_equal_training(on_ranks(body, plan), expected)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_averaged_weights_are_those_of_one_device(plan: str) -> None:
    def loop(model: Any) -> tuple[list[float], dict[str, Tensor]]:
        averaged: Any = AveragedModel(model)
        losses, _ = train(model, lambda model, _: averaged.update_parameters(model))
        inner = averaged.module.eval()
        with torch.no_grad():
            losses.append(averaged(*BATCHES[0])["loss"].item())
        parallel = isinstance(inner, ParallelModule)
        return losses, inner.full_state_dict() if parallel else inner.state_dict()

    assert_equal_training(on_ranks(lambda model, _: loop(model), plan), loop(Net()))


def test_one_rank_may_copy_alone() -> None:
    def body(model: Any, _: nn.Module) -> float:
        if model.comm.rank == 0:
            copy.deepcopy(model)
        return float(model.train_step(BATCHES[0]))

    assert on_ranks(body) == pytest.approx(Net()(*BATCHES[0])["loss"].item())


def test_the_models_own_attributes_and_methods_are_there() -> None:
    plain = Net()

    def body(model: Any, _: nn.Module) -> Any:
        assert model.config == {"width": 8} and model.doubled == 2 and model.alpha == 1.0
        assert model.width == plain.width
        # A rank does not have what others add once, such as the bias after a sum.
        assert model.comm.rank > 0 or model.count() == plain.count()
        assert isinstance(model.blocks[0].norm, nn.BatchNorm1d) and model.blocks[0].norm.momentum == 0.1
        assert [type(m).__name__ for m in model.blocks] and len(model.blocks) == 2
        assert model.step_loss(*BATCHES[0]).item() == model(*BATCHES[0])["loss"].item()
        with pytest.raises(AttributeError):
            _ = model.nothing_of_this_name
        return train(model, optimizer=model.configure_optimizers())

    before = copy.deepcopy(plain)
    before(*BATCHES[0]), before(*BATCHES[0])
    expected = train(before, optimizer=before.configure_optimizers())
    assert_equal_training(on_ranks(body), expected)


@pytest.mark.parametrize("method", ["penalty", "generate"])
def test_methods_that_compute_are_answered_with_what_to_write(method: str) -> None:
    args = () if method == "penalty" else BATCHES[0][:1]
    text = refused("SW0809", lambda model, _: getattr(model, method)(*args))
    assert f"plain.load_state_dict(model.full_state_dict()); plain.{method}(...)" in text


@pytest.mark.slow
def test_a_compiled_model_is_the_model() -> None:
    """Its program is compiled already, and runs as it was proved: nothing of it is compiled once more."""
    expected, _ = train(Net())
    torch._dynamo.utils.counters.clear()

    def body(model: Any, _: nn.Module) -> list[float]:
        optimizer, compiled = sw.optimizer(model, torch.optim.SGD, lr=0.1), torch.compile(model)
        losses = []
        for batch in BATCHES:
            losses.append(compiled(*batch)["loss"])
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.item() for loss in losses]

    assert on_ranks(body, "data") == pytest.approx(expected, rel=1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0
