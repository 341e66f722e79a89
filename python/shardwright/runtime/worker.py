"""What one rank needs to run its program, over all steps."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import RuntimeFault
from .buckets import Kept
from .comm import Comm
from .exchange import Part, part_of
from .program import Program
from .randomness import MODES, Masks, keyed_masks, single_device_masks
from .regions import cut, local_factors, shape_of, whole
from .shards import Shards


def refuse_another_world(program: Program, comm: Comm) -> None:
    """Comes before anything that looks for this rank's part of the program."""
    if program.world != comm.world:
        raise RuntimeFault(
            "SW0705",
            f"the program is for {program.world} ranks, and there are {comm.world}",
            why="each rank runs one device's part",
            fix="start as many ranks as the program is for, or compile it again",
        )


class Worker:
    def __init__(
        self,
        program: Program,
        comm: Comm,
        shards: Shards,
        *,
        seed: int = 0,
        randomness: str = "keyed",
        generator: torch.Generator | None = None,
    ):
        if randomness not in MODES:
            raise RuntimeFault(
                "SW0711", f"randomness {randomness!r} is unknown", fix=f"one of {', '.join(MODES)}"
            )
        self.program, self.comm, self.shards = program, comm, shards
        self.seed, self.randomness = seed, randomness
        self.generator = generator or torch.default_generator
        self.role, self.table = program.role(comm.rank), program.ranks[comm.rank]
        self.code = program.code(comm.rank)
        self.constants = program.constants(comm.rank)
        # Buffers of gradients, kept from step to step.
        self.kept: Kept = {}
        self._parts: dict[int, Part] = {}
        comm.prepare(program.groups)

    def masks(self, step: int, micro_batch: int) -> Masks:
        if self.randomness == "single-device":
            return single_device_masks(self.program, self.comm.rank, self.generator)
        return keyed_masks(self.table.random, self.seed, step, micro_batch)

    def part(self, step: int) -> Part:
        if step not in self._parts:
            table = self.program.exchanges[step]
            self._parts[step] = part_of(table, self.program.tensors[table.tensor], self.comm.rank)
        return self._parts[step]

    def exchange_dtype(self, step: int) -> torch.dtype:
        return self.program.tensors[self.program.exchanges[step].tensor].dtype

    def inputs(self, values: list[Tensor], given: str) -> list[Tensor]:
        """This rank's parts of the caller's tensors, which are `global` or already `local`."""
        return [self._input(values, at, given) for at in range(len(self.role.inputs))]

    def _input(self, values: list[Tensor], at: int, given: str) -> Tensor:
        tensor, region = self.program.tensors[self.role.inputs[at]], self.table.inputs[at]
        expected = tensor.shape
        if given == "local":
            expected = shape_of(local_factors(region, tensor.factors))
        value = values[tensor.position]
        name = tensor.names[0] if tensor.names else f"number {tensor.position}"
        if tuple(value.shape) != expected or value.dtype != tensor.dtype:
            raise RuntimeFault(
                "SW0706",
                f"input {name} is {tuple(value.shape)} of {value.dtype},"
                f" the program is for {expected} of {tensor.dtype}",
                why="a program is made for the shapes and dtypes of its example inputs",
                fix="give inputs of that shape, or compile another program for this one",
            )
        if value.requires_grad and torch.is_grad_enabled():
            raise RuntimeFault(
                "SW0718",
                f"input {name} requires a gradient",
                why="the program computes gradients of parameters only",
                fix="detach the input",
            )
        part = value.detach()
        if given == "global" and region != whole(tensor.factors):
            part = cut(part, tensor.factors, region)
        return part.to(self.comm.device)
