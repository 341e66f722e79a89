"""The emitted program on one device against the module it was made from."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable

import torch
from measure import assert_close, interleaved, one_thread, peak_of, pin, ratio, seconds
from shapes import gpt_100m
from tables import Table, ratio_of, size_of, time_of

import shardwright as sw

BATCH, LENGTH = 2, 128
AIM = 1.02


def bench(quick: bool) -> Table:
    pairs = 5 if quick else 40
    threads = torch.get_num_threads()
    one_thread()
    module, batch = gpt_100m(BATCH, LENGTH)
    plain = copy.deepcopy(module)
    ours = sw.parallelize(module, batch, plan="replicate")
    del module
    adamw = torch.optim.AdamW(plain.parameters(), lr=1e-4)
    adamw_ours = sw.optimizer(ours, torch.optim.AdamW, lr=1e-4)

    def forward_backward_plain() -> float:
        loss = plain(*batch)
        loss.backward()
        return loss.item()

    def forward_backward_ours() -> float:
        loss = ours.train_step(batch)
        assert loss is not None
        return loss.item()

    step_plain = _step(forward_backward_plain, adamw)
    step_ours = _step(forward_backward_ours, adamw_ours)
    worst = assert_close(
        "one device", [step_ours() for _ in range(3)], [step_plain() for _ in range(3)], 1e-5
    )
    cores = _pinned()
    a, b = interleaved(lambda: seconds(step_ours), lambda: seconds(step_plain), pairs)
    _release(cores)
    found = ratio(a, b)
    worst = max(worst, assert_close("one device, at the end", [step_ours()], [step_plain()], 1e-3))
    peaks = peak_of(step_ours), peak_of(step_plain)
    torch.set_num_threads(threads)

    size = sum(p.numel() for p in plain.parameters())
    table = Table(
        "one-device",
        "One device",
        f"A GPT of {size / 1e6:.0f}M parameters, float32, batch {BATCH}, sequence {LENGTH}: forward, backward"
        f" and AdamW. Emitted code (plan `replicate`) against the module itself, {pairs} interleaved pairs of"
        f" steps, one thread on one core. The aim is at most {AIM}x.",
        ["", "emitted", "plain PyTorch", "ratio [95%]"],
    )
    table.add("step", time_of(statistics.median(a)), time_of(statistics.median(b)), ratio_of(found))
    table.add("step's peak above what is held", *map(size_of, peaks), f"{peaks[0] / peaks[1]:.3f}x")
    table.notes.append(f"Largest relative difference of the losses: {worst:.1e}.")
    table.values = {"ours": a, "theirs": b, "ratio": found, "peaks": peaks, "worst": worst}
    return table


def _step(forward_backward: Callable[[], float], adamw: torch.optim.Optimizer) -> Callable[[], float]:
    def step() -> float:
        loss = forward_backward()
        adamw.step()
        adamw.zero_grad()
        return loss

    return step


def _pinned() -> set[int]:
    import os

    cores: set[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    pin(-1)
    return cores


def _release(cores: set[int]) -> None:
    import os

    if cores:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)
