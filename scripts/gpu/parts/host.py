"""Microseconds that the runtime takes on the host: one rank of many, with tensors too small to count."""

from __future__ import annotations

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

import models
import shardwright as sw
from finding import Finding, Setting
from shardwright.runtime.communication.alone import Alone
from shardwright.runtime.execution import run as execution
from timing import synchronize

LAYERS, STEPS = 33, 8
# A plan, so many ranks, and the methods that are looked at under it.
CASES = [
    ("megatron", 8, ("call", "grad", "all_reduce")),
    ("megatron x overlap", 8, ("grad_inputs", "grad_weights")),
    ("zero3", 64, ("gather", "scatter_gradients")),
    ("zero3", 512, ("gather", "scatter_gradients")),
    ("data", 8, ()),
]


def run(setting: Setting, finding: Finding) -> None:
    table = finding.table(
        f"Host time of a small Llama of {LAYERS} layers, median of {STEPS} steps",
        ["plan", "ranks", "method", "times a step", "us each", "us inside the function"],
    )
    for plan, ranks, methods in CASES[: setting.sized(len(CASES), 1)]:
        with finding.trying(f"{plan} on {ranks}"):
            _case(setting, finding, table, plan, ranks, methods)


def _case(
    setting: Setting, finding: Finding, table: Any, plan: str, ranks: int, methods: tuple[str, ...]
) -> None:
    layers = setting.sized(LAYERS, 2)
    # As wide as there are ranks that each keep a part of a parameter.
    width = max(16, ranks if plan == "zero3" else 0)
    module, batch = models.llama(
        8, 16, layers, width, vocab_size=max(64, width), num_attention_heads=8, num_key_value_heads=8
    )
    comm = Alone(0, ranks, setting.device)
    batch = {key: x.repeat(max(1, ranks // 8), 1) for key, x in batch.items()}
    model = sw.parallelize(
        module, (), batch, plan=plan, devices=ranks, comm=comm, cache=False, progress=False
    )
    fused = {"fused": True} if setting.device.type == "cuda" else {}
    adamw = sw.optimizer(model, torch.optim.AdamW, lr=1e-3, **fused)
    batch = {key: x.to(setting.device) for key, x in batch.items()}

    def clip() -> None:
        sw.clip_grad_norm_(model, 1.0)

    def zero() -> None:
        adamw.zero_grad()

    phases: dict[str, Callable[[], Any]] = {
        "train_step": lambda: model.train_step(batch),
        "clip_grad_norm_": clip,
        "optimizer.step": adamw.step,
        "zero_grad": zero,
    }
    for _ in range(3):
        for phase in phases.values():
            phase()
    times_by_name: dict[str, list[float]] = defaultdict(list)
    for _ in range(setting.sized(STEPS, 2)):
        for name, phase in phases.items():
            synchronize(setting.device)
            start = time.perf_counter()
            phase()
            times_by_name[name].append(time.perf_counter() - start)
    for name, times in times_by_name.items():
        table.row(plan, ranks, name, 1, 1e6 * statistics.median(times), "")
        finding.values[f"{plan} {ranks} {name}"] = 1e6 * statistics.median(times)
    with _timed(methods, planted=setting.planted) as (calls, inside):
        model.train_step(batch)
    for name in methods:
        if finding.expect(bool(calls[name]), f"{plan} on {ranks} made no {name}"):
            each = 1e6 * statistics.median(calls[name])
            within = 1e6 * statistics.median(inside[name]) if inside[name] else ""
            table.row(plan, ranks, name, len(calls[name]), each, within)
            finding.values[f"{plan} {ranks} {name}"] = each


@contextmanager
def _timed(
    methods: tuple[str, ...], *, planted: bool
) -> Iterator[tuple[dict[str, list[float]], dict[str, list[float]]]]:
    """How long each call of a method takes, and the code of the model within it."""
    calls: dict[str, list[float]] = defaultdict(list)
    inside: dict[str, list[float]] = defaultdict(list)

    def wrap(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
            if name == "call":
                args = (clocked(args[0]), *args[1:])
            start = time.perf_counter()
            result = method(self, *args, **kwargs)
            if not planted:
                calls[name].append(time.perf_counter() - start)
            return result

        return timed

    def clocked(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # the run knows calls by that name
        def within(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            inside["call"].append(time.perf_counter() - start)
            return result

        return within

    patches = [
        mock.patch.object(execution.Run, name, wrap(name, getattr(execution.Run, name))) for name in methods
    ]
    for patch in patches:
        patch.start()
    try:
        yield calls, inside
    finally:
        for patch in patches:
            patch.stop()
