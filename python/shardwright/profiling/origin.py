"""Where the figures of a profile are from: a device, a version of PyTorch, so many threads."""

from __future__ import annotations

import platform

import torch

from .._core import cluster_origin
from ..errors import ClusterError


def device_here(device: torch.device | str) -> str:
    """What the machine calls it."""
    return torch.cuda.get_device_name() if torch.device(device).type == "cuda" else processor()


def require_from_here(name: str, text: str | None, device: torch.device | str) -> None:
    """Refuses the file of a cluster that was measured elsewhere, or with another PyTorch; what was not
    measured says nothing about where it is from."""
    origin = None if text is None else cluster_origin(name, text)
    if origin is None:
        return
    there, torch_there, threads_there = origin
    here = device_here(device)
    threads = torch.get_num_threads() if torch.device(device).type == "cpu" else threads_there
    differs = [
        f"{what} {theirs}, here it is {ours}"
        for what, theirs, ours in [
            ("on", there, here),
            ("with PyTorch", torch_there, torch.__version__),
            (
                "with threads:",
                threads_there,
                threads if torch.device(device).type == "cpu" else threads_there,
            ),
        ]
        if theirs != ours
    ]
    if differs:
        raise ClusterError(
            "SW0917",
            f"the profile {name} was not made here",
            why="it was measured " + "; ".join(differs),
            fix="make it anew: `shardwright profile --devices 2 -o here.toml`; to plan for other devices than"
            " those here, `shardwright compare` and `plan` take any cluster",
        )


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"
