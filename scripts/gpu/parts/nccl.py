"""Each message of `TorchComm` in a world of one, in every dtype; what it reads is kept until it is done."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist

from finding import Finding, Setting
from ports import free_port
from shardwright.runtime.communication.comm import TorchComm

DTYPES = [
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.complex64, torch.complex128),
]


def run(setting: Setting, finding: Finding) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    if setting.dry:
        dist.init_process_group("gloo", rank=0, world_size=1)
    else:
        dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    comm = TorchComm(setting.device if setting.dry else torch.device("cuda", 0))
    comm.prepare([[[0]]], {(0, True): [0]})
    table = finding.table("Messages of one rank", ["", *(str(d).removeprefix("torch.") for d in DTYPES)])
    for name, method in METHODS.items():
        table.row(name, *(_tried(finding, setting, comm, name, method, dtype) for dtype in DTYPES))
    with finding.trying("what counts on the host"):
        finding.expect(comm.tally([3, 4], "two numbers") == [3, 4], "tally of one rank is what it gave")
        finding.expect(comm.hand(b"x") == b"x", "hand of one rank is what it gave")
        finding.expect(comm.all_gather_objects("y") == ["y"], "all_gather_objects of one rank")
    with finding.trying("ends"):
        dist.destroy_process_group()


def _tried(
    finding: Finding, setting: Setting, comm: TorchComm, name: str, method: Method, dtype: torch.dtype
) -> str:
    given = torch.arange(1 << 12, device=setting.device).remainder(100).to(dtype)
    expected = given.clone()
    try:
        received = method(comm, given)
    except Exception as error:
        finding.fail(f"{name} of {dtype}: {' '.join(str(error).split())[:300]}")
        return "error"
    if setting.planted:
        received = received.clone().zero_()
    equal = torch.equal(received, expected)
    finding.expect(equal, f"{name} of {dtype} gives other values")
    return "equal" if equal else "OTHER"


Method = Callable[[TorchComm, torch.Tensor], torch.Tensor]


def _all_reduce(comm: TorchComm, x: torch.Tensor) -> torch.Tensor:
    comm.all_reduce(x, (0,), "sum").wait()
    return x


def _all_reduce_max(comm: TorchComm, x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        return x
    comm.all_reduce(x, (0,), "max").wait()
    return x


def _all_gather(comm: TorchComm, x: torch.Tensor) -> torch.Tensor:
    rows = torch.empty_like(x).unsqueeze(0)
    work = comm.all_gather(rows, x.clone(), (0,))
    _refill(x)
    work.wait()
    return rows[0]


def _reduce_scatter(comm: TorchComm, x: torch.Tensor) -> torch.Tensor:
    """Over Gloo a group has two ranks at least."""
    if comm.device.type == "cpu":
        return x
    out = torch.empty_like(x)
    work = comm.reduce_scatter(out, x.clone().unsqueeze(0), (0,))
    _refill(x)
    work.wait()
    return out


def _all_to_all(comm: TorchComm, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    comm.all_to_all([out], [x], (0,))
    return out


def _broadcast(comm: TorchComm, x: torch.Tensor) -> torch.Tensor:
    comm.broadcast(x, 0)
    return x


def _exchange(comm: TorchComm, x: torch.Tensor) -> torch.Tensor:
    """To itself: NCCL can, Gloo cannot."""
    if comm.device.type == "cpu":
        return x
    out = torch.empty_like(x)
    comm.exchange({0: x}, {0: out})
    return out


def _refill(like: torch.Tensor) -> None:
    """Takes memory that was given up too early, and writes to it."""
    for _ in range(4):
        torch.full_like(like, 7 if like.dtype != torch.bool else True)


METHODS: dict[str, Method] = {
    "all_reduce": _all_reduce,
    "all_reduce of maxima": _all_reduce_max,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "exchange": _exchange,
}
