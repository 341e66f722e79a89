"""What `parallelize` is asked for, by subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..capture.static_inputs.named import KnownInputs, asked_for
from ..constraints import ConstraintsLike, constraints_of, nothing_to_choose
from ..data.padding import LengthsLike
from ..errors import RuntimeFault
from ..precision import Precision, precision_of
from ..profiling.origin import require_from_here
from ..runtime import Comm
from .auto_plan import AUTO, Choice, cluster_here, cluster_of
from .compiling import require_one_of
from .outputs import Asked, require_outputs
from .planning import PlanLike


@dataclass(frozen=True)
class PlanOptions:
    """For which devices a plan is, and by what it is chosen."""

    plan: PlanLike
    devices: int | None
    cluster: str | None
    constraints: ConstraintsLike | None
    memory: int | str | None
    optimizer: str
    batches: int = 1
    """Which a step is given, each like the example."""

    @property
    def is_chosen(self) -> bool:
        return bool(self.plan == AUTO)

    def require(self) -> None:
        if self.constraints is not None and not self.is_chosen:
            raise nothing_to_choose(self.plan)
        if isinstance(self.batches, bool) or not isinstance(self.batches, int) or self.batches < 1:
            raise RuntimeFault(
                "SW0845",
                f"batches={self.batches!r} is no number of batches",
                why="it says how many batches like the example a step is given",
                fix="give a whole number from 1 on",
            )

    def choice(self, comm: Comm, devices: int, inputs: str) -> Choice:
        """For a unit of so many devices."""
        memory = self.memory
        if self.cluster:
            name, text = cluster_of(self.cluster)
            require_from_here(name, text, comm.device)
        else:
            here = cluster_here(comm.device.type, devices)
            name, text = here.name, here.text
            memory = here.memory if memory is None else memory
        constraints = constraints_of(self.constraints)
        return Choice(name, text, 1, self.optimizer, memory, constraints=constraints, inputs=inputs)


@dataclass(frozen=True)
class CallOptions:
    """What a call is given and gives, and how it is computed."""

    inputs: str
    outputs: Asked
    micro_batches: int | str
    lengths: LengthsLike | None
    known_inputs: KnownInputs
    discover: bool
    precision: str | Precision | None

    def require(self) -> None:
        require_one_of("inputs", self.inputs, ("global", "local"))
        require_outputs(self.outputs)

    def capturing(self, device: str) -> dict[str, Any]:
        """What capture is told."""
        return {
            "precision": precision_of(self.precision),
            "device": device,
            "discover": self.discover,
            "known_inputs": asked_for(self.known_inputs, self.inputs),
        }


def plain_options(plans: PlanOptions, calls: CallOptions, more: Mapping[str, Any]) -> dict[str, Any]:
    """By the names that they have as arguments, so that ranks can compare them."""
    return {**vars(plans), **vars(calls), "precision": precision_of(calls.precision), **more}
