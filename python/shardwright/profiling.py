"""What operators and messages take on the devices here, as the file of a cluster.

All ranks measure at the same time: devices of one machine share its memory.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

import torch
from torch import Tensor

from .runtime.communication.comm import Comm, TorchComm
from .runtime.communication.launch import launch

# How long each thing is repeated.
SECONDS = 0.25
DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
CHAIN = 100
TENSORS = 24


@dataclass(frozen=True)
class Measured:
    """Of one device, while all of them measure.

    Operations a second by type, bytes a second of its memory, seconds to start an operator, bytes of its
    memory; of messages among all of them seconds without bytes, and bytes a second.
    """

    peak: dict[str, float]
    bandwidth: float
    overhead: float
    memory: int
    alone: float
    rate: float


def profile(devices: int, backend: str = "gloo") -> str:
    """The file of a cluster with so many devices like those here: rank 0's text."""
    measured = launch(_measured, devices, (devices,), backend=backend)
    return _text(measured, devices)


def _measured(rank: int, devices: int) -> Measured:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // devices))
    comm = TorchComm()
    comm.prepare([[range(devices)]])
    device = comm.device
    alone, rate = _messages(comm) if devices > 1 else (1e-4, 1e9)
    return Measured(
        peak={name: _products(comm, dtype) for name, dtype in DTYPES.items()},
        bandwidth=_copies(comm),
        overhead=_overhead(comm),
        memory=_memory(device, devices),
        alone=alone,
        rate=rate,
    )


def _products(comm: Comm, dtype: torch.dtype) -> float:
    size = 768 if comm.device.type == "cpu" else 8192
    if comm.device.type == "cpu" and dtype in (torch.bfloat16, torch.float16):
        size = 256  # without instructions of its own such a product takes long
    x, w = (torch.randn(size, size, device=comm.device).to(dtype) for _ in range(2))
    return 2 * size**3 / _seconds(comm, lambda: torch.nn.functional.linear(x, w))


def _copies(comm: Comm) -> float:
    """Of more than caches hold, one tensor after the other, as optimizers do it."""
    size = 1 << (20 if comm.device.type == "cpu" else 26)
    xs, ys = ([torch.zeros(size, device=comm.device) for _ in range(TENSORS)] for _ in range(2))

    def add() -> None:
        for x, y in zip(xs, ys, strict=True):
            x.add_(y)

    return 3 * sum(x.nbytes for x in xs) / _seconds(comm, add)


def _overhead(comm: Comm) -> float:
    """Of an operator, forward and backward."""
    start = torch.zeros(4, device=comm.device, requires_grad=True)

    def chain() -> None:
        x: Tensor = start
        for _ in range(CHAIN):
            x = x + 1.0
        x.sum().backward()

    return _seconds(comm, chain) / (2 * CHAIN)


def _messages(comm: Comm) -> tuple[float, float]:
    ranks = tuple(range(comm.world))
    few = torch.zeros(1, device=comm.device)
    many = torch.zeros(1 << 20, device=comm.device)
    rows = torch.zeros(comm.world, len(many) // comm.world, device=comm.device)
    alone = _seconds(comm, lambda: comm.all_reduce(few, ranks, "sum").wait())
    summed = _seconds(comm, lambda: comm.all_reduce(many, ranks, "sum").wait())
    gathered = _seconds(comm, lambda: comm.all_gather(rows, rows[comm.rank].clone(), ranks).wait())
    share = (comm.world - 1) / comm.world * many.nbytes
    rates = 2 * share / max(summed - alone, 1e-9), share / max(gathered - alone, 1e-9)
    return alone, statistics.geometric_mean(rates)


def _seconds(comm: Comm, work: Callable[[], object]) -> float:
    """The median time of some work, which all ranks do at once and equally often."""
    for _ in range(3):
        work()
    comm.barrier()
    start = time.perf_counter()
    work()
    _wait(comm.device)
    once = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    times = comm.tally([int(float(once) * 1e9)])[0] / comm.world / 1e9
    found = []
    for _ in range(max(5, min(200, int(SECONDS / max(times, 1e-6))))):
        start = time.perf_counter()
        work()
        _wait(comm.device)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(device: torch.device, devices: int) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / devices)


def _text(found: Measured, devices: int) -> str:
    hops = max(1, ceil(log2(devices)))
    peak = ", ".join(f'{name} = "{rate / 1e9:.4g} GFLOP/s"' for name, rate in found.peak.items())
    return f"""# What `shardwright profile` measured, with PyTorch {torch.__version__}.
name = "{devices} devices here"

[[nodes]]
devices = "here:{devices}"

[nodes.link]
bandwidth = "{found.rate / 1e9:.4g} GB/s"
latency = "{found.alone / 4 / hops * 1e6:.4g} us"
start = "{found.alone / 2 * 1e6:.4g} us"
reached = 1.0

[devices.here]
memory = "{found.memory / 1e9:.4g} GB"
bandwidth = "{found.bandwidth / 1e9:.4g} GB/s"
peak = {{ {peak} }}
overhead = "{found.overhead * 1e6:.4g} us"
compute_reached = 1.0
memory_reached = 1.0
"""
