"""Every plan, and every reference model, on ranks whose messages arrive when they are waited for.

A missing wait is a number that is none, and memory that is used while a message uses it is an error. So the
kinds of messages that CPUs make at once are tried as a GPU makes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import equality
import models
import zoo
from late import late
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.runtime.communication.comm import NO_LIMIT

torch.set_num_threads(1)

Made = tuple[Any, tuple[Any, ...], dict[str, Any]]


def mixtral() -> Made:
    """Its router has no loss of its own: a step starts from one."""
    module, args, kwargs = zoo.mixtral(layers=1)
    module.config.output_router_logits = False
    kwargs.pop("output_router_logits", None)
    return module, args, kwargs


REFERENCE: dict[str, Callable[[], Made]] = {
    "mlp": lambda: (*models.mlp(), {}),
    "gpt": lambda: (*models.gpt(batch=4, time=8, vocabulary=31, width=16, dropout=0.1), {}),
    "resnet": lambda: (*models.resnet(batch=4, size=8), {}),
    "llama": zoo.llama,
    "gpt2": zoo.gpt2,
    "mixtral": mixtral,
    "bert": zoo.bert,
    "t5": functools.partial(zoo.t5, layers=1),
    "whisper": functools.partial(zoo.whisper, layers=1),
    "vit": zoo.vit,
    "swin": functools.partial(zoo.swin, stages=1),
    "hf-resnet": zoo.resnet,
}

# Each plan with how many devices; of one rank nothing is sent.
PLANS = {
    "data": 2,
    "megatron": 2,
    "megatron x overlap": 2,
    "megatron-sp x overlap": 2,
    "sequence": 2,
    "zigzag": 2,
    "ulysses": 2,
    "coshard:2 x data": 2,
    "zero1": 2,
    "zero2": 2,
    "zero3": 2,
    "zero3 x whole-updates": 2,
    "zero3 x recompute": 2,
    "zero3 x offload": 2,
    "zero3 x recompute:selective x megatron:2": 4,
    "zero3:2 x megatron:2 x recompute x overlap": 4,
    "data:2 x megatron:2 x recompute": 4,
    "stages:2 x gpipe": 2,
    "stages:2 x 1f1b": 2,
    "stages:2 x interleaved:2": 2,
    "stages:2 x zb-h1": 2,
    "stages:2 x zb-v": 2,
    "stages:2 x bidirectional": 2,
    "stages:2 x interlaced": 2,
    "stages:2 x 1f1b x tokens:2": 2,
    "stages:2 x zero3:2 x 1f1b": 4,
    "stages:2 x megatron:2 x 1f1b": 4,
    "stages:2 x megatron:2 x 1f1b x overlap": 4,
    "stages:2 x megatron:2 x zb-h1 x overlap": 4,
}
# What other models have that a GPT has not, or not so.
MORE = [
    ("mlp", "zero3"),
    ("resnet", "image"),
    ("resnet", "zero2"),
    ("llama", "megatron"),
    ("llama", "megatron x overlap"),
    ("llama", "stages:2 x zb-v"),
    ("gpt2", "ulysses"),
    ("mixtral", "expert"),
    ("mixtral", "zero3"),
    ("mixtral", "megatron x overlap"),
    ("bert", "sequence"),
    ("t5", "megatron"),
    ("t5", "stages:2 x 1f1b"),
    ("whisper", "data"),
    ("vit", "zero3"),
    ("swin", "megatron x overlap"),
    ("hf-resnet", "data"),
]
CASES = [("gpt", plan) for plan in PLANS] + MORE


@functools.cache
def known(name: str) -> tuple[Made, Captured]:
    module, args, kwargs = made = REFERENCE[name]()
    with nullcontext() if name in models.MODELS else zoo.widened():
        return made, capture(module, args, kwargs)


def program(name: str, plan: str, devices: int) -> Bundle:
    _, captured = known(name)
    compiled = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    return Bundle(dict(compiled.files), compiled.digest, plan, devices, captured, "", captured.graph_text)


# Where each unit is one message, as on GPUs. Three ranks have parts of several sizes.
JOINED = [
    ("gpt", "zero3", 3),
    ("gpt", "zero3 x recompute", 2),
    ("gpt", "zero3 x offload", 2),
    ("gpt", "zero3:2 x data:2 x offload:parameters", 4),
    ("gpt", "zero3 x recompute:selective x megatron:2", 4),
    ("gpt", "stages:2 x zero3:2 x 1f1b", 4),
    ("llama", "zero3", 2),
    ("vit", "zero3", 3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plan"), CASES, ids=lambda it: it)
def test_nothing_is_read_before_it_has_arrived(name: str, plan: str) -> None:
    _run(name, plan, PLANS.get(plan, 2))


@pytest.mark.parametrize(("name", "plan", "devices"), JOINED, ids=lambda it: str(it))
@pytest.mark.parametrize("joined", [0, NO_LIMIT], ids=["apart", "joined"])
def test_it_is_the_same_however_much_travels_together(
    name: str, plan: str, devices: int, joined: int
) -> None:
    _run(name, plan, devices, joined)


def _run(name: str, plan: str, devices: int, joined: int | None = None) -> None:
    (module, args, kwargs), _ = known(name)
    kinds: set[str] = set()
    bundle = program(name, plan, devices)
    batches = equality.micro_batches(kwargs or args, 4 if "stages" in plan else 2)
    actual = equality.run_steps(
        bundle, module, batches, 1, functools.partial(dict, seed=1), local=late(kinds=kinds, joined=joined)
    )
    assert kinds, "nothing has been waited for"
    alike = equality.run_steps(bundle, module, batches, 1, functools.partial(dict, seed=1))
    equality.assert_equal(actual, alike)


def test_all_models_are_there() -> None:
    assert {name for name, _ in CASES} == set(REFERENCE)
