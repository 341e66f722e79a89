"""`plan="auto"`: the quickest plan for a cluster, as the search finds it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ._core import Found, Graph, Plan, search_plan
from .errors import ClusterError
from .memory import OPTIMIZER
from .summary import time_of

AUTO = "auto"

# Words of the name that CUDA has for a device, and what the catalog calls it.
KNOWN = {
    "H200": "h200",
    "H100 80GB": "h100",
    "H100 PCIe": "h100",
    "A100 80GB": "a100",
    "A100 40GB": "a100-40g",
    "V100 32GB": "v100",
    "V100S 32GB": "v100",
    "L4": "l4",
}
# The catalog's memory of each, in GB.
MEMORY = {"h200": 141, "h100": 80, "a100": 80, "a100-40g": 40, "v100": 32, "l4": 24}


@dataclass(frozen=True)
class Choice:
    """For what a plan is chosen."""

    cluster: str
    text: str | None = None
    """What the cluster's file says, if it has one."""
    batches: int = 1
    """Micro-batches of a step."""
    optimizer: str = OPTIMIZER
    memory: int | str | None = None
    """Of each device, where that is not what the cluster says."""
    deadline: float | None = None
    constraints: tuple[str, str] | None = None
    """What all plans respect: what it is called, and what it says."""
    inputs: str = "global"
    """What ranks are given: their own rows of a batch, or all of it."""

    def search(
        self,
        graph: Graph,
        devices: int,
        every: bool = False,
        wanted: int | None = None,
        below: float | None = None,
        watch: Callable[[str], object] | None = None,
    ) -> Found:
        return search_plan(
            graph,
            devices,
            self.cluster,
            self.text,
            batches=self.batches,
            optimizer=self.optimizer,
            memory=self.memory,
            deadline=self.deadline,
            every=every,
            wanted=wanted,
            below=below,
            watch=watch,
            constraints=self.constraints,
            inputs=self.inputs,
        )

    def says(self, found: Found) -> str:
        """What is expected of the plan that was chosen."""
        step = found.rows[0]["seconds"]
        least = f", at most {step / found.bound:.2f} times the least" if found.bound > 0 else ""
        return f"chosen for {self.cluster}: a step takes {time_of(step)}{least}"

    def plan(self, graph: Graph, devices: int) -> Plan:
        return self.search(graph, devices).plan(0)


def cluster_of(name: str) -> tuple[str, str | None]:
    """A cluster's name, and what its file says if it has one."""
    path = Path(name)
    if path.suffix != ".toml" and not path.is_file():
        return name, None
    try:
        return name, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(
            "SW0914",
            f"the cluster's file {path} cannot be read",
            why=getattr(error, "strerror", None) or "it is not text",
            fix="name a cluster's file that exists, or a cluster such as dgx-h100:8x4",
        ) from None


def cluster_here(device: str, world: int) -> str:
    """What is known of the devices on which this runs, if nobody says more."""
    if device == "cpu":
        return f"cpu:{world}"
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else device
    kind = _kind_of(name)
    if kind is None:
        raise ClusterError(
            "SW0923",
            f"nothing is known of the device {name}",
            why="a plan is chosen by what devices and links take, and the memory that there is",
            fix="give cluster=, a name or the path of a cluster's file, or name a plan",
        )
    local = min(int(os.environ.get("LOCAL_WORLD_SIZE", world)), world)
    return f"{kind}:{local}x{-(-world // local)}"


def memory_here(device: str, cluster: str) -> int | None:
    """Of the device on which this runs, where that is less than `cluster`, as it is known here, says."""
    if device == "cpu":
        return None
    import torch

    there: int = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return there if there < MEMORY[cluster.partition(":")[0]] * 10**9 else None


def _kind_of(name: str) -> str | None:
    words = {*re.split(r"[\s-]+", name.upper())}
    # A part of a device computes less than its name says.
    if "MIG" in words:
        return None
    return next((kind for known, kind in KNOWN.items() if words >= {*known.upper().split()}), None)
