"""Where memory ends in a step, the error says what was told of it, and is PyTorch's too."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from equality import scalars
from shardwright import RuntimeFault
from shardwright.report.memory import size_of
from shardwright.runtime import Alone
from shardwright.runtime.execution import gathers, steps
from shardwright.runtime.guards.out_of_memory import OutOfMemory, out_of_memory

torch.set_num_threads(1)
SAYS = "CUDA out of memory. Tried to allocate 2.00 GiB."
X, Y = torch.randn(8, 16), torch.randn(8, 16)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return F.mse_loss(x, y)


def parallel(plan: str, world: int = 2) -> sw.ParallelModule:
    return sw.parallelize(Model(), (X, Y), plan=plan, comm=Alone(0, world), cache=False, progress=False)


def planted(monkeypatch: pytest.MonkeyPatch, home: Any, name: str) -> None:
    def end(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError(SAYS)

    monkeypatch.setattr(home, name, end)


def full(model: sw.ParallelModule) -> RuntimeFault:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        model.train_step((X, Y))
    error = caught.value
    assert isinstance(error, RuntimeFault) and error.code == "SW0792"
    assert type(error.__cause__) is torch.OutOfMemoryError and str(error.__cause__) == SAYS
    return error


def test_a_call_is_named_with_what_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parallel("data")
    planted(monkeypatch, F, "linear")
    error = full(model)
    predicted = model.program.memory
    assert predicted is not None and predicted["total"] > predicted["peak"]["parameters"] > 0
    assert error.what == "there is no memory left on cpu, in `layers layers`"
    assert error.why is not None and error.why.startswith(f"PyTorch says: {SAYS}; the compiler predicted ")
    assert f"{size_of(predicted['total'])} of this rank: " in error.why
    kinds = sorted(((size, kind) for kind, size in predicted["peak"].items() if size), reverse=True)
    said = ", ".join(f"{size_of(size)} {kind}" for size, kind in kinds)
    assert error.why.endswith(f"{said}, in {predicted['at']}") and "backward, grad 0" in predicted["at"]


def test_a_message_and_a_backward_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parallel("zero3")
    with monkeypatch.context() as patch:
        planted(patch, gathers.Gathering, "__init__")
        assert "in `gather " in full(model).what
    model = parallel("data")
    with monkeypatch.context() as patch:
        planted(patch, torch.autograd, "backward")
        assert "in `grad " in full(model).what


def test_what_is_in_no_call_is_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parallel("data")
    planted(monkeypatch, steps.given_inputs, "parts")
    assert full(model).what == "there is no memory left on cpu, in a step"


def test_it_arrives_through_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a backward that the caller begins, on whichever thread that runs."""
    model = parallel("data")
    [loss] = scalars(model(X, Y))

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad

    plain = torch.autograd.backward

    def inner(edges: Any, grads: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(edges, list):  # the program's own
            raise torch.OutOfMemoryError(SAYS)
        return plain(edges, grads, *args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", inner)
    with pytest.raises(torch.OutOfMemoryError, match="SW0792") as caught:
        Full.apply(loss).backward()
    assert isinstance(caught.value, RuntimeFault) and "in `grad " in caught.value.what


HELP = {
    "data": ({"activations": 9, "optimizer": 1}, ["x recompute", "offload:activations", "micro_batches="]),
    "data x recompute": ({"activations": 9}, ["offload:activations", "micro_batches="]),
    "zero1": ({"optimizer": 9, "parameters": 5}, ["offload:state", "`zero3`"]),
    "zero3": ({"parameters": 9, "working": 5}, ["offload:parameters", "micro_batches="]),
}


@pytest.mark.parametrize("plan", HELP)
def test_what_helps_is_what_the_plan_lacks(plan: str) -> None:
    model = parallel(plan)
    peak, helps = HELP[plan]
    predicted = {**(model.program.memory or {}), "peak": peak}
    program = copy.copy(model.program)
    object.__setattr__(program, "memory", predicted)
    fix = out_of_memory(program, model.comm, "a step", torch.OutOfMemoryError(SAYS)).fix
    assert fix is not None
    places = [fix.index(help_) for help_ in helps]
    assert places == sorted(places)
    assert ("x recompute" in fix) is ("recompute" not in plan and "activations" in peak)


def test_without_what_was_told_the_rest_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parallel("data")
    object.__setattr__(model.program, "memory", None)
    planted(monkeypatch, F, "linear")
    error = full(model)
    assert error.why == f"PyTorch says: {SAYS}" and error.fix is not None and "recompute" in error.fix


def test_of_a_gpu_what_it_has_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = {
        "is_available": lambda: True,
        "mem_get_info": lambda device: (1 << 30, 80 << 30),
        "memory_allocated": lambda device: 70 << 30,
        "memory_reserved": lambda device: 76 << 30,
    }
    for name, value in statistics.items():
        monkeypatch.setattr(torch.cuda, name, value)
    model = parallel("data")
    monkeypatch.setattr(model.comm, "device", torch.device("cuda", 0))
    why = out_of_memory(model.program, model.comm, "a step", torch.OutOfMemoryError(SAYS)).why
    assert why is not None and "the device has 80.0 GiB, of which 1.0 GiB are free" in why
    assert "take 70.0 GiB, and PyTorch keeps 6.0 GiB more" in why


def test_it_travels() -> None:
    error = OutOfMemory("SW0792", "there is no memory left", why="because")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is OutOfMemory and str(again) == str(error)


def test_other_errors_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parallel("data")

    def end(*_: Any, **__: Any) -> Any:
        raise ValueError("another")

    monkeypatch.setattr(F, "linear", end)
    with pytest.raises(ValueError, match="another"):
        model.train_step((X, Y))
