"""Measures on all devices here at once, and writes the file of a cluster."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, replace
from math import ceil, log2

import torch

from ..errors import ClusterError
from ..runtime.communication.comm import Comm, TorchComm
from ..runtime.communication.devices import DeviceLike, fewer, number_here
from ..runtime.communication.launch import launch
from . import messages, operators, overhead
from .clock import seconds
from .operators import DTYPES, Curve
from .origin import device_here
from .overhead import Overhead

CHAIN = 100
TENSORS = 24


@dataclass(frozen=True)
class Measured:
    """Of one device, while all of them measure.

    The most operations a second by type, and bytes a second, of any operator; seconds to start an operator,
    bytes of its memory and of its host's; of messages among all of them seconds without bytes, and bytes a
    second.
    """

    device: str
    threads: int
    peak: dict[str, float]
    bandwidth: float
    overhead: float
    memory: int
    host_memory: int
    # Whether the device is the host's CPU.
    is_host: bool
    alone: float
    rate: float
    curves: list[Curve]
    messages: dict[tuple[str, int], messages.Points]
    hidden: float
    # Of an operator whose backward has two halves.
    apart: float
    # The steps of the probes.
    steps: list[float]


def profile(devices: int, device: DeviceLike = None) -> str:
    """The file of a cluster with so many devices like those here, GPUs if there are any: rank 0's text."""
    number = number_here()
    if device is None and 0 < number < devices:
        raise fewer(devices, number)
    return _file(launch(_measured, devices, (devices, devices), device=device), devices)


def profile_joined(comm: Comm) -> str | None:
    """The same for the processes that `torchrun` has started, all on one machine or each on its own. The text
    is rank 0's."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", comm.world))
    if local not in (1, comm.world):
        raise ClusterError(
            "SW0927",
            f"{comm.world} processes on machines of {local} are not measured as one",
            why="links inside of a machine and between machines are not alike, and measured apart",
            fix="measure one machine, then the network with one process on each, and write its rate into the"
            " first file, under [network]",
        )
    measured = _measured_by(comm, comm.world, local)
    return _file(measured, comm.world) if comm.rank == 0 else None


def _file(measured: Measured, devices: int) -> str:
    def text(besides: Overhead) -> str:
        return _text(measured, devices, besides)

    return text(overhead.of_steps(devices, measured.steps, text))


def _measured(rank: int, devices: int, local: int) -> Measured:
    return _measured_by(TorchComm(), devices, local)


def _measured_by(comm: Comm, devices: int, local: int) -> Measured:
    """Of one of so many processes, of which so many share a machine; with the threads that it has, as in a
    run."""
    groups = messages.groups_of(devices)
    comm.prepare([groups[size] for size in groups] or [[range(devices)]])
    curves = operators.measured(comm, _types(comm))
    times = messages.measured(comm)
    alone, rate = _rate(times, devices) if devices > 1 else (1e-4, 1e9)
    return Measured(
        device=device_here(comm.device),
        threads=torch.get_num_threads(),
        peak={name: max(_products(comm, dtype), _most(curves, name)) for name, dtype in DTYPES.items()},
        bandwidth=max(_sums(comm), _most(curves)),
        overhead=_overhead(comm),
        memory=_memory(comm.device, local),
        host_memory=_of_host(local),
        is_host=comm.device.type == "cpu",
        alone=alone,
        rate=rate,
        curves=curves,
        messages=times,
        hidden=messages.hidden(comm) if devices > 1 else 1.0,
        apart=overhead.apart(),
        steps=overhead.measured(comm),
    )


def _to_host(measured: Measured) -> str:
    """Of what is its own host: a copy reads and writes."""
    if not measured.is_host:
        return ""
    rate = measured.bandwidth / 1e9
    return f'host = "{rate / 2:.4g} GB/s"\nhost_bandwidth = "{rate:.4g} GB/s"\n'


def _types(comm: Comm) -> list[str]:
    """Types of operators that are measured one by one; the others have their rates."""
    return ["f32", "bf16"] if comm.device.type == "cpu" else ["f32", "bf16", "f16"]


def _products(comm: Comm, dtype: torch.dtype) -> float:
    size = 768 if comm.device.type == "cpu" else 8192
    if comm.device.type == "cpu" and dtype in (torch.bfloat16, torch.float16):
        size = 256  # without instructions of its own such a product takes long
    x, w = (torch.randn(size, size, device=comm.device).to(dtype) for _ in range(2))
    return 2 * size**3 / seconds(comm, lambda: torch.nn.functional.linear(x, w))


def _sums(comm: Comm) -> float:
    """Bytes a second of more than caches hold, one tensor after the other, as optimizers do it."""
    size = 1 << (20 if comm.device.type == "cpu" else 26)
    xs, ys = ([torch.zeros(size, device=comm.device) for _ in range(TENSORS)] for _ in range(2))

    def add() -> None:
        for x, y in zip(xs, ys, strict=True):
            x.add_(y)

    return 3 * sum(x.nbytes for x in xs) / seconds(comm, add)


def _most(curves: list[Curve], dtype: str | None = None) -> float:
    """The most operations of a type, or else the most bytes, that an operator reached in a second."""
    chosen = (
        one for one in curves if one.by_operations == (dtype is not None) and dtype in (None, one.dtype)
    )
    return max((size / time for one in chosen for size, time in one.points), default=0.0)


def _overhead(comm: Comm) -> float:
    """Of an operator, forward and backward."""
    start = torch.zeros(4, device=comm.device, requires_grad=True)

    def chain() -> None:
        x: torch.Tensor = start
        for _ in range(CHAIN):
            x = x + 1.0
        x.sum().backward()

    return seconds(comm, chain) / (2 * CHAIN)


def _rate(times: dict[tuple[str, int], messages.Points], devices: int) -> tuple[float, float]:
    """For groups of sizes that were not measured: seconds without bytes, and bytes a second."""
    summed, gathered = times["all_reduce", devices], times["all_gather", devices]
    alone, (nbytes, whole), (_, parts) = summed[0][1], summed[-1], gathered[-1]
    share = (devices - 1) / devices * nbytes
    rates = 2 * share / max(whole - alone, 1e-9), share / max(parts - alone, 1e-9)
    return alone, statistics.geometric_mean(rates)


def _memory(device: torch.device, local: int) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return _of_host(local)


def _of_host(local: int) -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / local)


def _text(measured: Measured, devices: int, besides: Overhead) -> str:
    def slower(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """As in a step."""
        return [(size, besides.slower * time) for size, time in points]

    hops = max(1, ceil(log2(devices)))
    peak = ", ".join(f'{name} = "{rate / 1e9:.4g} GFLOP/s"' for name, rate in measured.peak.items())
    head = f"""# What `shardwright profile` measured, on {devices} processes at the same time.
name = "{devices} devices here"

[profile]
device = "{measured.device}"
torch = "{torch.__version__}"
threads = {measured.threads}

[[nodes]]
devices = "here:{devices}"

[nodes.link]
bandwidth = "{measured.rate / 1e9:.4g} GB/s"
latency = "{measured.alone / 4 / hops * 1e6:.4g} us"
start = "{measured.alone / 2 * 1e6:.4g} us"
reached = 1.0
"""
    device = f"""
[devices.here]
memory = "{measured.memory / 1e9:.4g} GB"
host_memory = "{measured.host_memory / 1e9:.4g} GB"
{_to_host(measured)}bandwidth = "{measured.bandwidth / 1e9:.4g} GB/s"
peak = {{ {peak} }}
overhead = "{measured.overhead * 1e6:.4g} us"
compute_reached = 1.0
memory_reached = 1.0

[devices.here.runtime]
step = "{besides.step * 1e6:.4g} us"
call = "{besides.call * 1e6:.4g} us"
wake = "{besides.wake * 1e6:.4g} us"
apart = "{measured.apart * 1e6:.4g} us"
hidden = {measured.hidden:.3f}
"""
    links = [_row("nodes.link.collectives", f'kind = "{kind}"\ndevices = {size}', "bytes", slower(points))
             for (kind, size), points in measured.messages.items()]  # fmt: skip
    curves = [replace(curve, points=slower(curve.points)) for curve in measured.curves]
    return head + "".join(links) + device + "".join(map(_of_curve, curves))


def _of_curve(curve: Curve) -> str:
    said = f'kind = "{curve.kind}"\ndtype = "{curve.dtype}"\npass = "{curve.way}"'
    sizes = "operations" if curve.by_operations else "bytes"
    return _row("devices.here.operators", said, sizes, curve.points)


def _row(table: str, said: str, sizes: str, points: list[tuple[float, float]]) -> str:
    """What was measured of one thing; a size that costs nothing is none."""
    counted = [(size, time) for size, time in points if size > 0]
    if not counted:
        return ""
    first = ", ".join(f"{float(size):.0f}.0" for size, _ in counted)
    second = ", ".join(f"{time:.4e}" for _, time in counted)
    return f"\n[[{table}]]\n{said}\n{sizes} = [{first}]\nseconds = [{second}]\n"
