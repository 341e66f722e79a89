"""A profiler shows calls, their backwards and messages by the names of emitted functions and modules."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import models
import shardwright as sw
from equality import scalars
from shardwright.runtime.communication.alone import Alone
from shardwright.runtime.execution import profiles

torch.set_num_threads(1)
PLANS = {
    "megatron:2": {"all_reduce", "call", "grad"},
    "data:2 x recompute": {"reduce_gradients"},
    "zero3:2": {"gather", "release", "scatter_gradients"},
    "stages:2 x 1f1b": {"send", "receive"},
    "stages:2 x zb-h1": {"grad_inputs", "grad_weights"},
}


def spans(plan: str, profiled: bool = True) -> tuple[Counter[str], sw.ParallelModule]:
    """Of one step of a rank."""
    module, args = models.gpt(depth=3)
    model = sw.parallelize(module, args, plan=plan, devices=2, comm=Alone(0, 2), cache=False, progress=False)
    with profile(activities=[ProfilerActivity.CPU]) if profiled else torch.no_grad() as trace:
        model.train_step([args, args])
    names = Counter(event.name for event in trace.events()) if profiled else Counter()
    return names, model


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_a_trace_has_the_names_of_the_program(plan: str) -> None:
    names, model = spans(plan)
    kinds = {name.split(" ")[0] for name in names}
    functions = {name for text in model.program.files.values() for name in _defined(text)}
    assert PLANS[plan] - {"call"} <= kinds
    called = [name for name in names if name.split(" ")[0] in functions - {"forward", "backward", "step"}]
    # Where all of a stage is one function, no module has all that it reads.
    assert called and any(name.partition(" ")[2].startswith("h.") for name in called) is (
        "stages" not in plan
    )
    # What is profiled is what was issued: each message once.
    for kind, count in Counter(kind for kind, _, _ in model.issued).items():
        assert sum(number for name, number in names.items() if name.split(" ")[0] == kind) >= count, kind
    grads = [name for name in names if name.split(" ")[0] in ("grad", "grad_inputs", "grad_weights")]
    assert {name.split(" ")[1] for name in grads} <= functions


def _defined(text: str) -> list[str]:
    return [line.split(" ")[1].split("(")[0] for line in text.splitlines() if line.startswith("def ")]


@pytest.mark.slow
def test_layers_are_told_apart() -> None:
    names, _ = spans("megatron:2")
    for layer in range(3):
        for kind in ("", "grad ", "all_reduce "):
            assert any(name.startswith(kind) and f"h.{layer}.attn" in name for name in names), (kind, layer)
    gathered = [name for name in spans("zero3:2")[0] if name.startswith("gather ")]
    assert {f"h.{layer}" in name for layer in range(3) for name in gathered} == {True, False}


@pytest.mark.slow
def test_without_a_profiler_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("nobody profiles")

    monkeypatch.setattr(profiles, "name_of", refuse)
    spans("megatron:2", profiled=False)
    with pytest.raises(AssertionError, match="nobody profiles"):
        spans("megatron:2")


def test_a_flag_is_all_that_is_asked_for_without_a_profiler() -> None:
    """The wrapper makes two Python calls: the method's own, and none of PyTorch's."""

    class Spanned:
        @profiles.spanned
        def call(self, number: int) -> int:
            return number

    called: list[str] = []
    one = Spanned()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if "call" in event else None)
    try:
        assert one.call(3) == 3
    finally:
        sys.setprofile(None)
    assert called == ["around", "call", "test_a_flag_is_all_that_is_asked_for_without_a_profiler"]


def test_calls_from_before_the_profiler_have_their_names() -> None:
    module, args = models.gpt()
    model = sw.parallelize(module, args, plan="megatron:2", devices=2, comm=Alone(0, 2), cache=False)
    [loss] = scalars(model(*args))
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        loss.backward()
    calls = model.program.roles[0].calls
    assert len(calls) > 5
    assert {event.name for event in trace.events()} >= {f"grad {name}" for name in calls}
