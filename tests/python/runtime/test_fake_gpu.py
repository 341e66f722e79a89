"""Emitted programs on a GPU that is not there: nothing is made on another device, and no step reads a value,
for which it would wait."""

from __future__ import annotations

import functools
import json
import pickle
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
import zoo
from shardwright import Graph, Plan
from shardwright.capture import Captured, capture
from shardwright.precision import precision_of
from shardwright.start.compiling import Bundle, compile_plan


class Spectrum(nn.Module):
    """Tensors that are made of numbers, in every way that has a rule."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.inside, self.head = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        n, like = self.width, {"dtype": x.dtype}
        x = self.inside(x) @ (torch.eye(n, **like) + torch.eye(n, n, **like))
        windows = (torch.hann_window, torch.hamming_window, torch.blackman_window, torch.bartlett_window)
        for window in (*windows, torch.kaiser_window):
            x = x * (window(n, **like) + window(n, False, **like) + 1)
        x = x * torch.kaiser_window(n, True, 9.0, **like) + torch.hamming_window(n, True, 0.4, **like)
        x = x + torch.hamming_window(n, True, 0.4, 0.6, **like)
        x = (
            x
            + torch.linspace(0, 1, n, **like)
            + torch.logspace(0, 1, n, **like)
            + torch.full((n,), 0.5, **like)
        )
        x = x + torch.arange(n, **like) + torch.arange(1, n + 1) + torch.arange(0, 2 * n, 2)
        x = x + torch.zeros(n, **like) + torch.ones(n, **like) + x.new_zeros(n) + x.new_ones(1)
        x = (
            x
            + torch.zeros_like(x)
            + torch.scalar_tensor(0.5, **like)
            + torch.tensor(2.0)
            + x.new_full((n,), 1.0)
        )
        found = torch.fft.rfft(x) * (torch.fft.rfftfreq(n, **like) + 1)
        x = (
            torch.fft.irfft(found, n)
            + torch.fft.ifft(torch.fft.fft(x) * torch.fft.fftfreq(n, 0.5, **like)).real
        )
        i, j = torch.tril_indices(n, n, -1)[:, :n], torch.triu_indices(n, n, 1)[:, :n]
        x = x + x[:, i[0]] + x[:, j[0]] + torch.where(x > 0, x, torch.tensor(0.0, **like))
        return torch.nn.functional.mse_loss(self.head(x), target)


def spectrum() -> models.Model:
    torch.manual_seed(0)
    return Spectrum().double(), (torch.randn(4, 8).double(), torch.randn(4, 1).double())


pytestmark = [pytest.mark.slow, pytest.mark.processes]

Batch = tuple[tuple[Any, ...], dict[str, Any]]
# In seconds.
TIMEOUT = 300
READING = ("DataDependentOutputException", "DynamicOutputShapeException")

MODELS: dict[str, Callable[[], Any]] = {
    **models.MODELS,
    "gpt, dropout": lambda: models.gpt(dropout=0.1),
    "spectrum": spectrum,
    "gpt2": zoo.gpt2,
    "gpt2, dropout": lambda: zoo.gpt2(dropout=0.1),
    "bert": zoo.bert,
    "llama": zoo.llama,
    "t5": zoo.t5,
    "t5, dropout": lambda: zoo.t5(dropout=0.1),
    "mixtral": zoo.mixtral,
    "vit": zoo.vit,
    "whisper": zoo.whisper,
}


@functools.cache
def captured(name: str, precision: str | None) -> tuple[Batch, Captured]:
    module, args, *rest = MODELS[name]()
    kwargs = rest[0] if rest else {}
    module = module.float() if precision else module
    args = tuple(x.float() if precision and x.is_floating_point() else x for x in args)
    with nullcontext() if precision else zoo.widened():
        return (args, dict(kwargs)), capture(module, args, kwargs, precision=precision_of(precision))


def compiled(name: str, plan: str, devices: int, precision: str | None = None) -> tuple[Batch, Bundle]:
    batch, of_model = captured(name, precision)
    bundle, _ = compile_plan(of_model, Plan.named(Graph(of_model.graph_text), plan, devices))
    return batch, bundle


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str | None]]:
    """Runs steps of all ranks of a program there: what went wrong, if anything did."""
    script = Path(__file__).parents[1] / "fake_gpu.py"
    file = tmp_path_factory.mktemp("fake_gpu") / "case"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def run(batch: Batch, bundle: Bundle, micro_batches: int = 1) -> str | None:
        file.write_bytes(pickle.dumps((batch, bundle, micro_batches)))
        process.stdin.write(f"{file}\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        if not select.select([process.stdout], [], [], TIMEOUT)[0]:
            process.kill()
            pytest.fail("the steps hang")
        answer: str | None = json.loads(process.stdout.readline())  # type: ignore[union-attr]
        return answer

    yield run
    process.stdin.close()
    process.wait()


CASES: list[tuple[str, str, int, int]] = [
    ("mlp", "data", 2, 2),
    ("resnet", "data", 2, 1),
    ("two_losses", "data", 2, 1),
    *[("spectrum", plan, 2, 1) for plan in ("replicate", "data")],
    *[("gpt", plan, 2, 1) for plan in ("sequence", "ulysses", "zero1", "zero2", "zero3 x whole-updates")],
    *[("gpt", f"{plan} x offload:parameters", 2, 2) for plan in ("data", "zero3")],
    ("gpt", "offload:state", 1, 1),
    ("gpt", "coshard:2", 1, 1),
    *[("gpt, dropout", plan, 2, 1) for plan in ("data", "megatron", "sequence", "zigzag", "data x offload")],
    ("gpt, dropout", "megatron x recompute", 2, 1),
    ("gpt, dropout", "megatron-sp x overlap", 2, 1),
    ("gpt, dropout", "zero3 x recompute", 2, 2),
    ("gpt, dropout", "megatron x recompute:selective x offload", 2, 1),
    ("gpt, dropout", "data:2 x megatron:2", 4, 1),
    *[("gpt, dropout", f"stages:2 x {order}", 2, 3) for order in ("1f1b", "gpipe", "zb-h1", "zb-v", "2bw")],
    *[("gpt", f"stages:2 x {order}", 2, 2) for order in ("interleaved:2", "interlaced", "bidirectional")],
    ("gpt", "stages:2 x tokens:2", 2, 2),
    ("gpt", "stages:2 x zero3:2 x 1f1b", 4, 2),
    ("gpt2, dropout", "zero3 x recompute:selective x offload:activations", 2, 1),
    ("bert", "megatron", 2, 1),
    *[("llama", plan, 2, 1) for plan in ("megatron", "zero3 x recompute", "zigzag")],
    ("t5", "data:2 x megatron:2", 4, 1),
    ("t5, dropout", "zero3 x recompute", 2, 1),
    ("vit", "megatron", 2, 1),
    ("whisper", "data", 2, 1),
]


@pytest.mark.parametrize(("model", "plan", "devices", "micro_batches"), CASES)
def test_a_step_reads_no_value_and_mixes_no_devices(
    device: Callable[..., str | None], model: str, plan: str, devices: int, micro_batches: int
) -> None:
    if (fault := device(*compiled(model, plan, devices), micro_batches)) is not None:
        pytest.fail(fault)


# What reads values, by name, and why.
READS = {
    ("mixtral", "data", None): "experts take their own rows, of which the host has to know how many",
    ("mixtral", "expert", None): "rows for experts are counted before they are sent",
    ("gpt", "data", "fp16"): "whether a gradient overflowed decides on the host if there is an update",
}


@pytest.mark.parametrize(
    ("model", "plan", "precision"),
    [pytest.param(*case, marks=pytest.mark.xfail(reason=why)) for case, why in READS.items()],
)
def test_what_cannot_do_without_values(
    device: Callable[..., str | None], model: str, plan: str, precision: str | None
) -> None:
    fault = device(*compiled(model, plan, 2, precision))
    assert fault is None or not any(error in fault for error in READING), fault


FAULTS = {
    "made on the host": (", device=rank.device", "", "FakeTensorDeviceMismatchError"),
    "read": ("\ndef forward(run, p, rank, idx, targets):\n", "    idx.sum().item()\n", "DataDependent"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(device: Callable[..., str | None], fault: str) -> None:
    old, new, error = FAULTS[fault]
    batch, bundle = compiled("gpt", "data", 2)
    files = {
        name: text.replace(old, new if not new.strip() else old + new) if name.endswith(".py") else text
        for name, text in bundle.files.items()
    }
    assert files != bundle.files
    reported = device(batch, replace(bundle, files=files))
    assert reported is not None and error in reported
