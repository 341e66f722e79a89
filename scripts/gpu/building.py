"""One rank of any plan, without a model's values: these are made where the rank keeps its parts."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

import models

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A plan for a model. `small` are those of the tests, in float32."""

    model: str
    batch: int
    length: int
    plan: str
    devices: int
    rank: int = 0
    layers: int = 4
    width: int = 4096
    vocabulary: int = 128256
    micro_batches: int = 1
    small: bool = False

    def made(self) -> tuple[nn.Module, Batch]:
        """On meta; its batch is on the CPU."""
        with torch.device("meta"):
            module, batch = self._made()
        return (module if self.small else module.bfloat16()), batch

    def _made(self) -> tuple[nn.Module, Batch]:
        if self.model == "gpt2":
            return models.small_gpt2(self.batch) if self.small else models.gpt2(self.batch, self.length)
        if self.small:
            return models.small_llama(self.batch)
        options = {"vocab_size": self.vocabulary}
        return models.llama(self.batch, self.length, self.layers, self.width, **options)


@dataclass
class Ready:
    """A program with what is told of it; may go from process to process."""

    case: Case
    bundle: Any
    batch: Batch
    """Bytes that the rank needs, by what they are for at the moment when they are most, and on the host."""
    predicted: int
    peak: dict[str, int]
    on_host: int
    """Seconds of what the rank does in a step, by name."""
    lane: dict[str, float]
    operations: float
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def computes(self) -> float:
        """Seconds that the device is told to compute, whatever the others do."""
        return sum(self.lane[name] for name in ("forward", "backward", "again", "copies", "update"))


def prepared(case: Case, cluster: str) -> Ready:
    """Captured, planned, compiled and simulated; needs no device."""
    from shardwright._core import Graph, Plan, simulate_step
    from shardwright.start.compiling import compile_plan

    began = time.perf_counter()
    captured, batch = _captured(replace(case, plan="", devices=1, rank=0, micro_batches=1))
    then = time.perf_counter()
    plan = Plan.named(Graph(captured.graph_text), case.plan, case.devices)
    bundle, compiled = compile_plan(captured, plan)
    step = simulate_step(plan, compiled, cluster, batches=case.micro_batches)
    lanes = {int(lane["rank"]): lane for lane in step.ranks}
    # Ranks that are alike were followed as one.
    lane = lanes.get(case.rank) or lanes[max(rank for rank in lanes if rank <= case.rank)]
    return Ready(
        case,
        bundle,
        batch,
        step.memory[case.rank][0],
        dict(compiled.memory()[case.rank].peak),
        step.on_host[case.rank][0],
        dict(lane),
        step.operations[0],
        {"capture": then - began, "compile": time.perf_counter() - then},
    )


@functools.cache
def _captured(model: Case) -> tuple[Any, Batch]:
    """Once for all plans of a model."""
    from shardwright.capture import capture

    module, batch = model.made()
    return capture(module, (), batch, verify=False, device="cpu" if model.small else "cuda"), batch


class Made:
    """Random values of a usual size, of each part where it is kept; constants as they are."""

    def __init__(self, constants: dict[str, torch.Tensor]):
        self._constants = constants

    def parts(self, wanted: Sequence[Any], device: torch.device) -> list[torch.Tensor]:
        return [self._part(tensor, region, device) for tensor, region in wanted]

    def _part(self, tensor: Any, region: Any, device: torch.device) -> torch.Tensor:
        from shardwright.runtime.programs.regions import local_factors, shape_of
        from shardwright.runtime.shards.shards import own_copy

        if tensor.kind == "const":
            return own_copy(self._constants[tensor.names[0]], tensor, region, device)
        made = torch.empty(shape_of(local_factors(region, tensor.factors)), dtype=tensor.dtype, device=device)
        if not made.dtype.is_floating_point:
            return made.zero_()
        generator = torch.Generator(device).manual_seed(tensor.id)
        # Of one dim are scales of norms and biases, and frequencies.
        narrow = made.dim() < 2
        return (
            made.uniform_(0.5, 1.0, generator=generator)
            if narrow
            else made.normal_(0.0, 0.02, generator=generator)
        )


def started(ready: Ready, device: torch.device) -> Any:
    """The rank's module."""
    from shardwright.runtime import Alone, ParallelModule, load_program

    bundle = ready.bundle
    program = load_program(
        bundle.files, digest=bundle.digest, world=ready.case.devices, graph=bundle.graph_text
    )
    comm = Alone(ready.case.rank, ready.case.devices, device)
    return ParallelModule(program, comm, Made(bundle.captured.constants), bundle.captured)


def batches_of(ready: Ready, device: torch.device) -> Any:
    """As `train_step` takes them, on the device."""
    here = {name: x.to(device) for name, x in ready.batch.items()}
    number = ready.case.micro_batches
    return here if number == 1 else [here] * number


def adamw(model: Any, **options: Any) -> Any:
    """Fused, so that its step makes no temporary values; the parameters are all here or all on the host."""
    import shardwright as sw

    return sw.optimizer(model, torch.optim.AdamW, lr=1e-4, fused=True, **options)


def held(model: Any, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Bytes of parameters, and of the optimizer's state but for its counts of steps."""
    parameters = [shard.data for shard in model.shards.held if shard.tensor.kind == "param"]
    states = (x for state in optimizer.state.values() for x in state.values())
    state = [x for x in states if isinstance(x, torch.Tensor) and x.dim()]
    return sum(x.nbytes for x in parameters), sum(x.nbytes for x in state)


def cluster(device: torch.device, devices: int) -> str:
    name = torch.cuda.get_device_name(device).lower() if device.type == "cuda" else "h100"
    kind = next((known for known in ("h200", "h100", "a100") if known in name), "h100")
    if devices == 1:
        return f"{kind}:1"
    nodes = -(-devices // 8)
    return f"dgx-{kind}:{devices}" if nodes == 1 else f"dgx-{kind}:8x{nodes}"
