"""The process group of a program that made none."""

from __future__ import annotations

import atexit
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...errors import RuntimeFault
from . import devices, watch
from .comm import Comm, TorchComm, let_go
from .devices import DeviceLike
from .local import LocalComm, LocalWorld
from .places import Place, is_left_out, place_for_group, place_of


def is_started() -> bool:
    """Whether somebody, such as `torchrun` or `srun`, has said which of the ranks this is."""
    return place_of() is not None


def joined(device: DeviceLike = None, timeout: timedelta | None = None) -> Comm:
    """How this rank talks to the others: by the process group that is there, else by one that is made
    as `torchrun` or Slurm says, else it is alone. It is on the `device`, or on one that is found."""
    place = None if dist.is_initialized() else place_for_group()
    if place is not None:
        _start(place, device, timeout)
    if not dist.is_initialized():
        if is_left_out():
            warnings.warn(
                "Slurm has several tasks for this job, and this runs as one: start it by `srun`", stacklevel=2
            )
        return LocalComm(LocalWorld(1), 0, device=devices.take(device))
    atexit.register(_leave, place is not None)
    return TorchComm(device, timeout=timeout)


def seconds_of(timeout: float | None) -> timedelta | None:
    """How long communications may take, as it was given."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < 1e9:
        raise RuntimeFault(
            "SW0838",
            f"timeout {timeout!r} is not a positive number of seconds",
            why="it limits how many seconds a communication may take",
            fix="give a positive number of seconds, or leave it out",
        )
    return timedelta(seconds=timeout)


def _start(place: Place, device: DeviceLike, timeout: timedelta | None) -> None:
    taken = devices.take(device, place)
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if taken.type == "cpu":
        dist.init_process_group("gloo", **options)
        return
    # Of a known device communicators are made when groups are, by all ranks, not when some first use them.
    with devices.one_each():
        dist.init_process_group("nccl", device_id=taken, **options)


def _leave(made: bool) -> None:
    """A thread of a group that lets go of its last tensor after the interpreter has gone would abort
    the process. After a failure nothing is waited for: what is under way may never end."""
    if watch.has_failed():
        return
    if made and dist.is_initialized():
        dist.destroy_process_group()
    let_go()
