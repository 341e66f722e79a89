"""`shardwright profile`: the devices here as the file of a cluster, measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import ClusterError
from .parser import Commands
from .working import working


def add(commands: Commands) -> None:
    profile = commands.add_parser("profile", help="measure the devices here, and write a cluster's file")
    profile.add_argument(
        "--devices", type=int, default=2, help="processes that run at the same time; under torchrun, its own"
    )
    profile.add_argument(
        "--device", choices=("cpu", "cuda"), help="what is measured; without it GPUs, if there are any"
    )
    profile.add_argument("-o", "--to", required=True, metavar="FILE", help="the cluster's file")
    profile.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from .cluster import write

    path = Path(arguments.to)
    if arguments.devices < 1:
        raise ClusterError(
            "SW0915",
            f"{arguments.devices} devices cannot be measured",
            why="each is a process here",
            fix="give --devices 1, or more",
        )
    if not path.absolute().parent.is_dir():
        raise ClusterError(
            "SW0916",
            f"the cluster's file cannot be written to {path}",
            why="there is no such folder",
            fix="name a file in a folder that exists",
        )
    text = _measured(arguments.devices, arguments.device)
    if text is not None:
        write("SW0916", "the cluster's file", path, text)
        print(text, end="")


def _measured(devices: int, device: str | None) -> str | None:
    """What is to be written, by one of the processes."""
    from ..profiling.measuring import profile, profile_joined
    from ..runtime.communication.joining import is_started, joined

    if is_started():
        return profile_joined(joined(device))
    print(f"measuring on {devices} processes ...", file=sys.stderr)
    with working("profile", "measure"):
        return profile(devices, device)
