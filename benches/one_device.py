"""The emitted program on one device against the module it was made from."""

from __future__ import annotations

import copy
import os
import statistics
from collections.abc import Callable
from typing import Any

import torch
from hf import Batch, llama_100m, t5_100m
from measure import assert_close, interleaved, one_thread, peak_of, pin, ratio, seconds
from tables import Table, ratio_of, size_of, time_of
from torch import nn

import shardwright as sw

BATCH, LENGTH = 2, 128
AIM = 1.02
MODELS: dict[str, Callable[[int, int], tuple[nn.Module, Batch]]] = {"Llama": llama_100m, "T5": t5_100m}


def bench(quick: bool) -> Table:
    pairs = 5 if quick else 15
    threads = torch.get_num_threads()
    one_thread()
    table = Table(
        "one-device",
        "One device",
        f"Models of Transformers, float32, batch {BATCH}, sequence {LENGTH}: forward, backward and AdamW."
        f" Emitted code (plan `replicate`) against the module itself, {pairs} interleaved pairs of steps, one"
        f" thread on one core. The aim is at most {AIM}x.",
        ["", "", "emitted", "plain PyTorch", "ratio [95%]"],
    )
    for name, make in MODELS.items():
        module, batch = make(BATCH, LENGTH)
        compared = compare(name, module, batch, pairs)
        size = sum(p.numel() for p in module.parameters())
        medians = (time_of(statistics.median(compared[side])) for side in ("ours", "theirs"))
        table.add(f"{name}, {size / 1e6:.0f}M", "step", *medians, ratio_of(compared["ratio"]))
        ours, theirs = compared["peaks"]
        above = "step's peak above what is held"
        table.add("", above, size_of(ours), size_of(theirs), f"{ours / theirs:.3f}x")
        table.notes.append(f"Largest relative difference of {name}'s losses: {compared['worst']:.1e}.")
        table.values[name] = compared
    torch.set_num_threads(threads)
    return table


def compare(
    name: str, module: nn.Module, batch: Batch, pairs: int, *, compile: bool = False
) -> dict[str, Any]:
    """With `compile` both sides as `torch.compile` compiles them."""
    plain = copy.deepcopy(module)
    ours = sw.parallelize(copy.deepcopy(module), (), batch, plan="replicate", compile=compile)
    called = torch.compile(plain) if compile else plain
    adamw = torch.optim.AdamW(plain.parameters(), lr=1e-4)
    adamw_ours = sw.optimizer(ours, torch.optim.AdamW, lr=1e-4)

    def forward_backward_plain() -> float:
        loss = called(**batch).loss
        loss.backward()
        return float(loss.item())

    def forward_backward_ours() -> float:
        loss = ours.train_step(batch)
        assert loss is not None
        return loss.item()

    step_plain = _step(forward_backward_plain, adamw)
    step_ours = _step(forward_backward_ours, adamw_ours)
    firsts = seconds(step_ours), seconds(step_plain)
    worst = assert_close(name, [step_ours() for _ in range(3)], [step_plain() for _ in range(3)], 1e-5)
    cores = _pinned()
    a, b = interleaved(lambda: seconds(step_ours), lambda: seconds(step_plain), pairs)
    _release(cores)
    worst = max(worst, assert_close(f"{name}, at the end", [step_ours()], [step_plain()], 1e-3))
    peaks = peak_of(step_ours), peak_of(step_plain)
    sides = {"ours": a, "theirs": b, "ratio": ratio(a, b)}
    return {**sides, "peaks": peaks, "worst": worst, "firsts": firsts}


def _step(forward_backward: Callable[[], float], adamw: torch.optim.Optimizer) -> Callable[[], float]:
    def step() -> float:
        loss = forward_backward()
        adamw.step()
        adamw.zero_grad()
        return loss

    return step


def _pinned() -> set[int]:
    cores: set[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    pin(-1)
    return cores


def _release(cores: set[int]) -> None:
    if cores:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)
