"""`plan="auto"`: the quickest plan for a cluster, as the search finds it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .._core import Found, Graph, Plan, cluster_of_gpus, search_plan
from ..errors import ClusterError
from ..report.memory import OPTIMIZER
from ..report.summary import time_of
from ..support.deadline import default_deadline

AUTO = "auto"


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
    deadline: float | None = field(default_factory=default_deadline)
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

    def says(self, search: Found) -> str:
        """What is expected of the plan that was chosen."""
        step = search.rows[0]["seconds"]
        bound = f", at most {step / search.bound:.2f} times the lower bound" if search.bound > 0 else ""
        return f"chosen for {self.cluster}: a step takes {time_of(step)}{bound}"

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


@dataclass(frozen=True)
class Here:
    """The devices on which this runs, as a cluster."""

    name: str
    text: str | None = None
    """Of its file, if a name says too little."""
    memory: int | None = None
    """Bytes of each device, where that is less than the name says."""


def cluster_here(device: str, world: int) -> Here:
    """What is known of the devices on which this runs, if nobody says more."""
    if device == "cpu":
        return Here(f"cpu:{world}")
    if device != "cuda":
        raise ClusterError(
            "SW0923",
            f"nothing is known of the device {device}",
            why="a plan is chosen by the speed of devices and links, and by their memory",
            fix="give cluster=, a name or the path of a cluster's file, or name a plan",
        )
    local = _tasks_of_a_node(world)
    return Here(*cluster_of_gpus(*_driver(), local, -(-world // local)))


def _driver() -> tuple[str, int, int, tuple[int, int], float | None, float | None]:
    """What the driver says of this GPU: rates in hertz, and bytes a second; some leave these out."""
    import torch

    it = torch.cuda.get_device_properties(torch.cuda.current_device())
    clock, memory_clock, bus = (
        getattr(it, name, 0) or 0 for name in ("clock_rate", "memory_clock_rate", "memory_bus_width")
    )
    # In kilohertz, two words a clock; and in bits.
    bandwidth = 2 * memory_clock * 1e3 * bus / 8
    return (
        it.name,
        it.total_memory,
        it.multi_processor_count,
        (it.major, it.minor),
        clock * 1e3 or None,
        bandwidth or None,
    )


def _tasks_of_a_node(world: int) -> int:
    """As `torchrun` or Slurm says; else as many as there are GPUs."""
    import torch

    from ..runtime.communication.places import tasks_here

    said = re.match(r"\d+", os.environ.get("LOCAL_WORLD_SIZE", ""))
    local = int(said[0]) if said else tasks_here(os.environ)
    return max(1, min(torch.cuda.device_count() if local is None else local, world))
