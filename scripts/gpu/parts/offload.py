"""What a plan keeps on the host: how fast it goes and comes, beside what, and whether it is the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

import building
import timing
import traces
from building import Case, Ready
from finding import Finding, Setting, Table

FULL = Case("llama", 1, 4096, "replicate", 1, layers=3, vocabulary=32000)
SMALL = Case("llama", 4, 16, "replicate", 1, small=True)
PLANS = ["offload:activations", "recompute x offload:activations", "offload:state", "offload:parameters"]
# The optimizer steps these on the host, whose numbers round in their own way.
STEPPED_THERE = "offload:parameters"
# Aims: bytes a second, and what is hidden of what can be.
RATE, HIDDEN = 40e9, 0.8
# Smaller copies are mostly their beginning.
LARGE = 1 << 20
COLUMNS = [
    "plan", "step ms", "without ms", "to host GB/s", "GiB", "from host GB/s", "GiB",
    "hidden", "could be", "on host GiB, told", "pinned GiB", "the same",
]  # fmt: skip


def run(setting: Setting, finding: Finding) -> None:
    # Before the device's libraries are there, which read it once.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    case = SMALL if setting.dry or setting.planted else FULL
    table = finding.table("What is on the host between uses", COLUMNS)
    table.note(
        "Copies of 1 MiB and more, as the profiler saw them. Hidden is what of their time kernels run beside;"
        " it could be as much as kernels run in a step. The same: loss and gradients of a step and, but where"
        " the host steps parameters, these after three steps, to the bit, under deterministic algorithms."
    )
    without: dict[str, Run] = {}
    for plan in PLANS:
        beside = "recompute" if plan.startswith("recompute") else "replicate"
        with finding.trying(plan):
            if beside not in without:
                without[beside] = _run(setting, replace(case, plan=beside))
            offloaded = _run(setting, replace(case, plan=plan), planted=setting.planted)
            _tell(setting, finding, table, without[beside], offloaded)
            del offloaded
        timing.empty(setting.device)


@dataclass
class Run:
    ready: Ready
    losses: list[float]
    gradients: list[torch.Tensor]
    parameters: list[torch.Tensor]
    seconds: float
    events: list[traces.Event]
    pinned: int


def _run(setting: Setting, case: Case, *, planted: bool = False) -> Run:
    device = setting.device
    ready = building.prepared(case, building.cluster(device, 1))
    pinned = _pinned(device)
    model = building.started(ready, device)
    if planted:
        _damage(model.worker.host)
    optimizer = building.adamw(model)
    batches = building.batches_of(ready, device)
    losses, gradients = [], []

    def step() -> None:
        losses.append(model.train_step(batches))
        if not gradients:
            timing.synchronize(device)
            gradients.extend(_copies((shard.data.grad for shard in model.shards.held), device))
        optimizer.step()
        optimizer.zero_grad()

    with _deterministic(device):
        for _ in range(3):
            step()
        timing.synchronize(device)
    parameters = _copies((shard.data for shard in model.shards.held), device)
    numbers = [float(loss) for loss in losses]
    seconds = timing.repeated(step, device, warm=1, times=3)
    events = traces.traced(step, device)
    return Run(ready, numbers, gradients, parameters, seconds, events, _pinned(device) - pinned)


def _copies(tensors: Iterator[torch.Tensor | None], device: torch.device) -> list[torch.Tensor]:
    """On the device, which compares them quickly."""
    return [x.detach().to(device, copy=True) for x in tensors if x is not None]


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    # It would write into all memory that is made, which is right and takes its time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _tell(setting: Setting, finding: Finding, table: Table, without: Run, offloaded: Run) -> None:
    plan = offloaded.ready.case.plan
    moved = {way: _rate(traces.copies(offloaded.events, way)) for way in ("DtoH", "HtoD")}
    copies = [event for way in moved for event in traces.copies(offloaded.events, way)]
    computed = traces.kernels(offloaded.events)
    hidden = traces.hidden(copies, computed) if copies else 0.0
    lasts = sum(event.seconds for event in copies)
    could = min(1.0, sum(event.seconds for event in computed) / lasts) if lasts else 0.0
    differs = _difference(without, offloaded)
    table.row(
        plan, offloaded.seconds * 1e3, without.seconds * 1e3,
        *(x for way in moved for x in (moved[way][0] / 1e9, moved[way][1] / 2**30)),
        f"{hidden:.0%}", f"{could:.0%}", offloaded.ready.on_host / 2**30,
        offloaded.pinned / 2**30, differs or "yes",
    )  # fmt: skip
    finding.values[plan] = {
        "seconds": offloaded.seconds, "without": without.seconds, "moved": moved,
        "hidden": hidden, "could": could,
        "told": offloaded.ready.on_host, "pinned": offloaded.pinned, "losses": offloaded.losses,
    }  # fmt: skip
    finding.expect(not differs, f"{plan}: {differs}")
    finding.expect(offloaded.ready.on_host > 0, f"{plan}: nothing is told to be on the host")
    if setting.dry or setting.planted:
        return
    for way, (rate, size) in moved.items():
        finding.expect(size == 0 or rate >= RATE, f"{plan}: {way} at {rate / 1e9:.3g} GB/s")
    finding.expect(bool(copies), f"{plan}: no copy was seen")
    finding.expect(
        hidden >= HIDDEN * could, f"{plan}: {hidden:.0%} of the copies is hidden, and {could:.0%} could be"
    )


def _rate(copies: list[traces.Event]) -> tuple[float, int]:
    """Bytes a second, and bytes."""
    large = [event for event in copies if event.bytes >= LARGE]
    size, seconds = sum(event.bytes for event in large), sum(event.seconds for event in large)
    return (size / seconds if seconds else 0.0), size


def _difference(without: Run, offloaded: Run) -> str:
    if offloaded.losses[0] != without.losses[0]:
        return f"the first loss is {offloaded.losses[0]!r}, not {without.losses[0]!r}"
    if unequal := _unequal(offloaded.gradients, without.gradients):
        return f"{unequal} of {len(without.gradients)} gradients differ"
    if offloaded.ready.case.plan != STEPPED_THERE:
        if offloaded.losses != without.losses:
            return f"losses are {offloaded.losses}, not {without.losses}"
        if unequal := _unequal(offloaded.parameters, without.parameters):
            return f"{unequal} of {len(without.parameters)} parameters differ after three steps"
        return ""
    far = max(map(_distance, offloaded.parameters, without.parameters))
    return "" if far <= 1e-2 else f"parameters are {far:.1e} of their norm apart after three steps"


def _unequal(some: list[torch.Tensor], others: list[torch.Tensor]) -> int:
    if len(some) != len(others):
        return abs(len(some) - len(others))
    return sum(not torch.equal(a, b) for a, b in zip(some, others, strict=True))


def _distance(some: torch.Tensor, other: torch.Tensor) -> float:
    apart = torch.linalg.vector_norm(some.float() - other.float())
    return float(apart / torch.linalg.vector_norm(other.float()).clamp_min(1e-12))


def _damage(host: Any) -> None:
    """What is planted: on the host values are not safe."""
    fetch, bring = host.fetch, host.bring

    def spoilt(there: torch.Tensor | None) -> None:
        if there is not None:
            timing.synchronize(host.device)
            there.view(-1).view(torch.uint8)[::5].bitwise_xor_(1)

    def fetched(storages: Any) -> Any:
        known = list(storages)
        for storage in known:
            spoilt(storage.there)
        return fetch(known)

    def brought(there: torch.Tensor) -> torch.Tensor:
        spoilt(there)
        return bring(there)

    host.fetch, host.bring = fetched, brought


def _pinned(device: torch.device) -> int:
    """What is taken of the host's memory, which may be more than what is asked for."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))
