"""Calls that cannot be: of functions, of a model, with other state and worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import models
import shardwright as sw
from models import MODELS
from refusing import refused
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import Bundle, compile_model, sources


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return compile_model(*models.mlp(), plan="megatron", devices=2)[0]


def _optimizer(*args: Any) -> Callable[[], Any]:
    return lambda: sw.optimizer(*args, lr=0.1)


def test_first_mistakes() -> None:
    module, args = models.mlp()
    model = sw.parallelize(module, args, plan="replicate")
    made = torch.optim.AdamW(module.parameters())
    loader = torch.utils.data.DataLoader([args])
    mistakes = {
        "an optimizer that is made already": _optimizer(model, made),
        "an optimizer's parameters for its class": _optimizer(model, list(model.parameters())[:0]),
        "an optimizer of a plain model": _optimizer(module, torch.optim.AdamW),
        "a loader as example": lambda: sw.parallelize(module, loader),
        "an iterator of a loader as example": lambda: sw.parallelize(module, iter(loader)),
        "a data set as example": lambda: sw.parallelize(module, torch.utils.data.TensorDataset(*args)),
        "a loader as a batch": lambda: model.train_step(loader),
        "no processes": lambda: sw.launch(models.mlp, devices=0),
        "no function for processes": lambda: sw.launch(model.train_step(args), devices=2),  # type: ignore[arg-type]
    }
    for title, mistake in mistakes.items():
        refused(f"first mistakes: {title}", mistake)


def alone(plan: str = "replicate", name: str = "mlp") -> tuple[ParallelModule, tuple[Tensor, ...]]:
    module, args = MODELS[name]()
    return sw.parallelize(module, args, plan=plan), args


def test_arguments_of_parallelize() -> None:
    module, args = models.mlp()
    for key, value in [("outputs", "logits"), ("inputs", None), ("randomness", "none"), ("devices", 2)]:
        options: dict[str, Any] = {key: value}
        refused(
            f"parallelize: {key}={value}", lambda options=options: sw.parallelize(module, args, **options)
        )
    refused("compile_model: outputs", lambda: compile_model(module, args, outputs="logits"))


def test_calls_that_are_not_as_captured() -> None:
    model, (x, target) = alone()
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "other dtype": ((x.float(), target), {}),
        "one argument too few": ((x,), {}),
        "one argument too many": ((x, target, x), {}),
        "unknown keyword": ((x, target), {"mask": x}),
        "list instead of a tensor": (([x], target), {}),
        "number instead of a tensor": ((x, 3), {}),
    }
    for title, (args, kwargs) in calls.items():
        refused(f"call: {title}", lambda args=args, kwargs=kwargs: model(*args, **kwargs))
        if not kwargs:
            refused(f"call: {title}", lambda args=args: model.train_step(args))
    assert torch.isfinite(model(x, target=target))  # the same by keyword


def test_training_that_cannot_be() -> None:
    model, args = alone()
    refused("train: no batches", lambda: model.train_step([]))
    loss = model(*args)
    loss.backward()
    refused("train: backward twice", lambda: loss.backward())
    with torch.no_grad():
        assert not model(*args).requires_grad
    two, inputs = alone(name="two_losses")
    refused("train: two losses", lambda: two.train_step(inputs))


def test_a_state_dict_that_does_not_fit() -> None:
    model, _ = alone()
    before = {name: value.clone() for name, value in model.full_state_dict().items()}
    wrong = {name: value + 1 for name, value in before.items()}
    for name in ("layers.0.up.bias", "head.weight"):
        wrong.pop(name)
    wrong["layers.1.down.weight"] = torch.zeros(3, 3)
    wrong["head.bias"] = torch.zeros(2)
    wrong |= {"left.over": torch.zeros(1), "another": torch.zeros(1)}
    refused("state dict", lambda: model.load_full_state_dict(wrong))
    assert all(torch.equal(value, before[name]) for name, value in model.full_state_dict().items())


def test_a_world_that_is_not_that_of_the_plan(bundle: Bundle) -> None:
    values = sources(models.mlp()[0], bundle.captured)

    def body(rank: int, comm: Any) -> None:
        ParallelModule(load_program(bundle.files), comm, values, bundle.captured)

    refused("world: three ranks for two", lambda: run_local(3, body))
    refused("world: asked for three", lambda: load_program(bundle.files, world=3))
