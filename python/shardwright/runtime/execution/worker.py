"""What one rank needs to run its program, over all steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...as_python import Modules
from ...errors import RuntimeFault
from ..communication.comm import Comm
from ..communication.groups import Line, Pair, line
from ..programs.program import Program
from ..shards.shards import Shards
from .buckets import Kept
from .exchange import Part, part_of
from .gathers import Gathering
from .local_code import LocalCode
from .mail import Mail
from .offload import Host
from .randomness import (
    MODES,
    Masks,
    keyed_masks,
    keyed_randomness,
    single_device_masks,
    unknown_randomness,
)
from .scaling import LossScaling


def refuse_another_world(program: Program, comm: Comm) -> None:
    """Comes before anything that looks for this rank's part of the program."""
    if program.world != comm.world:
        raise RuntimeFault(
            "SW0705",
            f"the program is for {program.world} ranks, and there are {comm.world}",
            why="each rank runs one device's part",
            fix="start as many ranks as the program is for, or compile it again",
        )


def lines(program: Program) -> dict[Line, tuple[Pair, ...]]:
    """The ways by which blocks send to each other, and on each who sends to whom."""
    pairs_of_lines: dict[Line, set[Pair]] = {}
    for number, table in enumerate(program.exchanges if program.blocks > 1 else ()):
        for source, target, _ in table.pieces:
            ends = table.sources[source][0], table.targets[target][0]
            if ends[0] != ends[1]:
                pairs_of_lines.setdefault(line(*ends, number), set()).add(ends)
    return {at: tuple(sorted(pairs)) for at, pairs in pairs_of_lines.items()}


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
        reduce: torch.dtype | None = None,
        scaling: LossScaling | None = None,
        local: LocalCode | None = None,
        modules: Callable[[str], nn.Module] | None = None,
    ):
        """`reduce` is the dtype in which gradients of parameters are sent, if not in their own; `local`
        compiles what is between communications. `modules` are the model's by path, for those that run as
        they are."""
        if randomness not in MODES:
            raise RuntimeFault(
                "SW0711", f"randomness {randomness!r} is unknown", fix=f"one of {', '.join(MODES)}"
            )
        if scaling and any(role.gradients for role in program.roles):
            raise RuntimeFault(
                "SW0768",
                "an input requires a gradient, and float16 scales the loss",
                why="outside of the program gradients are not scaled, and small ones would be lost",
                fix='take precision="bf16", or detach the input',
            )
        self.program, self.comm, self.shards = program, comm, shards
        self.seed, self.randomness = seed, randomness
        self.reduce, self.scaling, self.local = reduce, scaling, local
        self._modules = modules
        self.generator = generator or torch.default_generator
        self.role, self.table = program.role(comm.rank), program.ranks[comm.rank]
        self.code = program.code(comm.rank)
        if local:
            local.splits = self.code.splits_backward
        self.constants = program.constants(comm.rank, comm.device)
        # Buffers of gradients, kept from step to step.
        self.kept: Kept = {}
        # Exchanges and updates whose tensors were compared with the graph.
        self.compared: set[tuple[str, int]] = set()
        self.host = Host(comm.device)
        # What is being gathered.
        self.coming: list[Gathering] = []
        self._parts: dict[int, Part] = {}
        # Which tables each code receives, in its order; known when it has run.
        self.received: dict[Callable[..., Any], tuple[int, ...]] = {}
        self.mail = Mail(comm)
        comm.prepare(program.groups, lines(program), goes_on=program.goes_on)

    def splits(self, number: int) -> bool:
        """Whether the backward of a call is split. Compiled code computes all gradients at once: its backward
        is split only where the two are functions of their own."""
        needs = self.role.grads.get(number)
        return needs is not None and needs.split and (self.code.splits_backward or not self.local)

    def talk_by(self, comm: Comm) -> None:
        """From now on its messages go that way."""
        self.comm = self.mail.comm = comm

    def copied(self, shards: Shards, scaling: LossScaling | None) -> Worker:
        """A worker for the same program over other shards; without a word to other ranks."""
        worker = copy.copy(self)
        worker.shards, worker.scaling = shards, scaling
        worker.kept, worker._parts, worker.coming = {}, {}, []
        worker.mail = Mail(self.comm)
        return worker

    def sharing(self, program: Program, shards: Shards) -> Worker:
        """A worker for another program of the same model."""
        worker = Worker(
            program,
            self.comm,
            shards,
            seed=self.seed,
            randomness=self.randomness,
            generator=self.generator,
            reduce=self.reduce,
            scaling=self.scaling,
            local=self.local and self.local.another(),
            modules=self._modules,
        )
        worker.host = self.host
        return worker

    def masks(self, step: int, micro_batch: int) -> Masks:
        if self.randomness == "single-device":
            return single_device_masks(self.program, self.comm.rank, self.generator)
        return keyed_masks(self.program, self.comm.rank, self.seed, step, micro_batch)

    def modules(self, step: int, micro_batch: int) -> Modules | None:
        if self._modules is None:
            return None
        if self.randomness == "single-device":
            return Modules(self._modules, unknown_randomness)
        return Modules(self._modules, keyed_randomness(self.seed, step, micro_batch, self.comm.device))

    def part(self, number: int) -> Part:
        if number not in self._parts:
            table = self.program.exchanges[number]
            self._parts[number] = part_of(table, self.program.tensors[table.tensor], self.comm.rank)
        return self._parts[number]

    def expect(self, code: Callable[..., Any] | None, batch: int) -> bool:
        """Asks for what a code will receive, if that is known."""
        numbers = self.received.get(code) if code else ()
        with torch.no_grad():
            for number in numbers or ():
                self.mail.expect(self.part(number), number, batch, self.exchange_dtype(number))
        return numbers is not None

    def exchange_dtype(self, number: int) -> torch.dtype:
        """Of the values that a rank without any receives."""
        tensor = self.program.tensors[self.program.exchanges[number].tensor]
        return tensor.read_as or tensor.dtype
