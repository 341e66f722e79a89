"""One rank of plans for many: the memory and the time that it was told to need beside what it takes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch

import building
import timing
from building import Case, Ready
from finding import Finding, Setting, Table

FULL = [
    Case("llama", 1, 8192, "megatron:8", 8, layers=32),
    Case("llama", 64, 8192, "zero3:64 x recompute", 64, layers=32),
    # The fourth stage has what five micro-batches keep.
    Case("llama", 8, 8192, "stages:8 x data:8 x 1f1b", 64, 24, layers=32, micro_batches=8),
    Case("gpt2", 64 * 8, 1024, "data:64", 64),
]
SMALL = [
    Case("llama", 4, 16, "megatron:2", 2, small=True),
    Case("llama", 4, 16, "zero3:4 x recompute", 4, 1, small=True),
    Case("llama", 4, 16, "stages:2 x data:2 x 1f1b", 4, 2, micro_batches=4, small=True),
    Case("gpt2", 8, 16, "data:4", 4, small=True),
]
# Aims: of memory told and measured, of what is reserved to what is told, of time told and measured.
MEMORY, RESERVED, TIME = 0.03, 1.1, 0.2
COLUMNS = [
    "model", "plan", "rank", "told GiB", "allocated GiB", "ratio", "reserved GiB", "ratio",
    "told ms", "measured ms", "ratio", "enqueued in ms", "captured in s", "compiled in s",
]  # fmt: skip


def run(setting: Setting, finding: Finding) -> None:
    # A planted fault is found on small models, too.
    small = setting.dry or setting.planted
    table = finding.table("One rank of a plan, the others taken to say what it says", COLUMNS)
    table.note(
        "Told memory is that of `simulate`, with AdamW; allocated and reserved are the most of a step that is"
        " not the first. Told time is what `simulate` has this rank compute in a step: no messages."
    )
    for case, ready in _prepared(SMALL if small else FULL, setting.device, apart=not small):
        with finding.trying(f"{case.model} under {case.plan}"):
            _measure(setting, finding, table, case, ready())
        timing.empty(setting.device)


def _prepared(
    cases: list[Case], device: torch.device, *, apart: bool
) -> Iterator[tuple[Case, Callable[[], Ready]]]:
    """All at once and in processes of their own, since each takes a core for many seconds."""
    clusters = [building.cluster(device, case.devices) for case in cases]
    if not apart:
        for case, cluster in zip(cases, clusters, strict=True):
            yield case, lambda case=case, cluster=cluster: building.prepared(case, cluster)
        return
    with ProcessPoolExecutor(len(cases), multiprocessing.get_context("spawn")) as pool:
        under_way = {
            pool.submit(building.prepared, case, cluster): case
            for case, cluster in zip(cases, clusters, strict=True)
        }
        for done in as_completed(under_way):
            yield under_way[done], done.result


def _measure(setting: Setting, finding: Finding, table: Table, case: Case, ready: Ready) -> None:
    device = setting.device
    before = _allocated(device)
    model = building.started(ready, device)
    optimizer = _optimizer(setting, model)
    batches = building.batches_of(ready, device)

    def step() -> None:
        model.train_step(batches)
        optimizer.step()
        optimizer.zero_grad()

    step()
    _held_is_told(finding, case, ready, building.held(model, optimizer))
    step()
    allocated, reserved = _peaks(step, device, before)
    takes = timing.repeated(step, device, warm=0, times=3)
    enqueued = timing.host_seconds(step, device)
    name = f"{case.model} under {case.plan}"
    table.row(
        case.model, case.plan, f"{case.rank} of {case.devices}",
        ready.predicted / 2**30, allocated / 2**30, ready.predicted / max(allocated, 1),
        reserved / 2**30, reserved / ready.predicted,
        ready.computes * 1e3, takes * 1e3, ready.computes / takes, enqueued * 1e3,
        ready.seconds["capture"], ready.seconds["compile"],
    )  # fmt: skip
    finding.values[name] = {
        "told": ready.predicted, "peak": ready.peak, "allocated": allocated, "reserved": reserved,
        "lane": ready.lane, "seconds": takes, "enqueued": enqueued, "prepared": ready.seconds,
    }  # fmt: skip
    if setting.dry or setting.planted:
        return
    off = ready.predicted / max(allocated, 1) - 1
    finding.expect(abs(off) <= MEMORY, f"{name}: told memory is off by {off:+.1%}")
    finding.expect(
        reserved <= RESERVED * ready.predicted,
        f"{name}: {reserved / ready.predicted:.2f} of what is told is reserved",
    )
    off = ready.computes / takes - 1
    finding.expect(abs(off) <= TIME, f"{name}: the time that is told is off by {off:+.0%}")
    finding.expect(
        enqueued < 0.95 * takes, f"{name}: the host needs {enqueued / takes:.2f} of the device's time"
    )


def _optimizer(setting: Setting, model: Any) -> Any:
    """What is planted: an optimizer with more state than is told of."""
    return building.adamw(model, **({"amsgrad": True} if setting.planted else {}))


def _held_is_told(finding: Finding, case: Case, ready: Ready, held: tuple[int, int]) -> None:
    for what, measured in zip(("parameters", "optimizer"), held, strict=True):
        predicted = ready.peak[what]
        finding.expect(
            abs(measured - predicted) <= 0.01 * predicted + 64,
            f"{case.model} under {case.plan}: {measured} bytes of {what} are held, {predicted} are told",
        )


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _peaks(step: Callable[[], object], device: torch.device, before: int) -> tuple[int, int]:
    """Without what was there before the model; nothing is known of a CPU's."""
    if device.type != "cuda":
        step()
        return 0, 0
    timing.empty(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    timing.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before, torch.cuda.max_memory_reserved(device)
