"""On which device a rank is: the one that was asked for, else one that is found.

What a process group can do is asked by type of device, not by its name: `"undefined"`, `"nccl"` and
`"cpu:gloo,cuda:nccl"` may all have NCCL for GPUs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.distributed as dist

from ...errors import RuntimeFault
from . import gpu_settings
from .places import Place

DeviceLike: TypeAlias = "torch.device | str | None"

# Of the types of devices what a process group has for them.
Backends = Mapping[str, str]
# Moves tensors of GPUs through the host, and not by all operations.
NOT_FOR_GPUS = ("gloo", "mpi")
# What NCCL says of two ranks on one GPU.
SHARED = "Duplicate GPU"

_preferred: DeviceLike = None


def prefer(device: DeviceLike) -> None:
    """For all ranks of this process that ask for nothing else."""
    global _preferred
    _preferred = device


def take(
    asked: DeviceLike = None, place: Place | None = None, backends: Backends | None = None
) -> torch.device:
    """The device of this rank, which is the current one from now on."""
    device = choose(asked, place, backends)
    gpu_settings.settle(device)
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        torch.cuda.set_device(device)
    return device


def choose(
    asked: DeviceLike = None, place: Place | None = None, backends: Backends | None = None
) -> torch.device:
    """`backends` are those of the process group, if there is one already."""
    asked = _preferred if asked is None else asked
    if asked is None:
        device = _found(place, backends)
    else:
        device = _parsed(asked)
        _require_usable(device, backends)
    if device.type == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", _index(place, backends) if device.index is None else _there(device.index))


def require_same(asked: DeviceLike, there: torch.device) -> None:
    """Of a way to talk that was given, and has its device."""
    device = None if asked is None else _parsed(asked)
    if device is not None and (device.type != there.type or device.index not in (None, there.index)):
        raise _not_usable(
            device,
            f"`comm` is given too, and is on {there}",
            "leave `device` out, or make the `comm` for that device",
        )


def backends_here() -> dict[str, str]:
    """Of the process group, by type of device."""
    pairs = (pair.split(":") for pair in dist.get_backend_config().split(",") if pair)
    return {pair[0]: pair[-1] for pair in pairs}


def number_here() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@contextmanager
def one_each() -> Iterator[None]:
    """Around what first connects GPUs: two ranks on one are told so in our words."""
    try:
        yield
    except RuntimeError as error:
        if SHARED not in str(error):
            raise
        raise RuntimeFault(
            "SW0836",
            "two ranks are on one GPU",
            why="NCCL needs one for each rank; LOCAL_RANK, or the `device` that you give, says which"
            " one a rank takes",
            fix="start the ranks by `torchrun` or `srun`, as many on a machine as it has GPUs",
        ) from error


def _found(place: Place | None, backends: Backends | None) -> torch.device:
    number = number_here()
    if backends is None:
        return torch.device("cuda" if number else "cpu")
    if number and _fits_gpus(backends):
        return torch.device("cuda")
    if "cpu" not in backends:
        raise _not_usable(
            torch.device("cpu"),
            f"no GPU is found here, and the process group is for others only: {_said(backends)}",
            'give init_process_group "cpu:gloo,cuda:nccl", or start it where the GPUs are',
        )
    if number and (place is None or place.rank == 0):
        warnings.warn(_why_not(number, backends), stacklevel=2)
    return torch.device("cpu")


def _why_not(number: int, backends: Backends) -> str:
    gpus = "1 GPU is" if number == 1 else f"{number} GPUs are"
    return (
        f"this runs on the CPU, though {gpus} here: the process group has nothing for GPUs"
        f' ({_said(backends)}); give init_process_group "cpu:gloo,cuda:nccl", or device="cpu" if you mean it'
    )


def _parsed(asked: torch.device | str) -> torch.device:
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError, ValueError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise RuntimeFault(
            "SW0837",
            f"{asked!r} is not a device for ranks",
            why="they run on CPUs and on GPUs that PyTorch calls `cuda`",
            fix='give "cpu", "cuda", "cuda:1", a torch.device of these, or leave it out',
        )
    return device


def _require_usable(device: torch.device, backends: Backends | None) -> None:
    if device.type == "cuda" and not number_here():
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        why = "PyTorch sees no GPU here" if built else "this PyTorch is built without CUDA"
        raise _not_usable(device, why, 'look at `nvidia-smi`, or give device="cpu"')
    if backends is None:
        return
    if not (_fits_gpus(backends) if device.type == "cuda" else "cpu" in backends):
        raise _not_usable(
            device,
            f"the process group has nothing for it: {_said(backends)}",
            'give init_process_group "cpu:gloo,cuda:nccl"',
        )


def _not_usable(device: torch.device, why: str, fix: str) -> RuntimeFault:
    return RuntimeFault("SW0837", f"this rank cannot run on {device}", why=why, fix=fix)


def _fits_gpus(backends: Backends) -> bool:
    return backends.get("cuda", NOT_FOR_GPUS[0]) not in NOT_FOR_GPUS


def _said(backends: Backends) -> str:
    return ", ".join(f"{backend} for {device}" for device, backend in backends.items())


def _there(index: int) -> int:
    number = number_here()
    if index < number:
        return index
    raise _not_usable(
        torch.device("cuda", index),
        f"there {'is 1 GPU' if number == 1 else f'are {number} GPUs'} here, counted from 0",
        "ask for one that is there",
    )


def _index(place: Place | None, backends: Backends | None) -> int:
    """The one that somebody has chosen already; else that of the rank's number on its machine."""
    bound = getattr(dist.group.WORLD, "bound_device_id", None) if backends is not None else None
    if bound is not None and bound.index is not None:
        return int(bound.index)
    current = torch.cuda.current_device()
    if current or place is None or (place.local_rank == 0 and place.local_world == 1):
        return current
    number = number_here()
    if place.local_world <= number and place.local_rank < number:
        return place.local_rank
    if (
        number == 1
        and len([one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]) == 1
    ):
        return 0  # each rank is shown its own
    raise fewer(place.local_world, number)


def fewer(ranks: int, number: int) -> RuntimeFault:
    gpus = "1 GPU" if number == 1 else f"{number} GPUs"
    return RuntimeFault(
        "SW0836",
        f"there are {ranks} ranks on this machine, and {gpus}",
        why="each rank needs a GPU of its own",
        fix=f'start {number} on it (`torchrun --nproc-per-node {number}`), or give device="cpu"',
    )
