"""Which parameters and inputs have a gradient, where only some of a program's outputs are given one.

A program's backward takes a gradient of each output that has one, zeros too. What only those outputs read
that nobody uses would get zeros, where autograd gives it none; and an optimizer steps what has zeros.
Which outputs are used is agreed on by all ranks, so all leave out the same parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..._core import reached_from
from ...errors import RuntimeFault
from ..communication.comm import Comm
from ..communication.verdicts import listed
from ..programs.program import Program
from ..shards.shards import Shards


@dataclass(frozen=True)
class Reach:
    """By name the parameters, and by position the inputs, that a gradient gets to; `everything` has one that
    any output gives one to."""

    parameters: frozenset[str] = frozenset()
    inputs: frozenset[int] = frozenset()
    everything: bool = False

    def keep(self, gradients: dict[int, Tensor], arrived: dict[int, Tensor], shards: Shards) -> None:
        """Of the gradients of inputs, and of parameters by `id`, only those that one device has."""
        if self.everything:
            return
        for shard in shards.held:
            if self.parameters.isdisjoint(shard.tensor.names):
                arrived.pop(id(shard.data), None)
        for position in gradients.keys() - self.inputs:
            del gradients[position]


def reach_of(program: Program, used: Collection[int]) -> Reach:
    """`used` are the positions of the outputs that are given a gradient on some rank. A program that came
    without the model's graph gives zeros, as its text says."""
    if set(used) >= set(program.seeded) or not program.graph:
        return Reach(everything=True)
    return _reach(program.graph, tuple(sorted(used)))


def reach_of_step(program: Program) -> Reach:
    """A step starts from the loss, whatever else leaves."""
    outputs = [output for role in program.roles for output in enumerate(role.outputs)]
    tensors = {at: program.tensors[output.tensor] for at, output in outputs if output is not None}
    return reach_of(program, [at for at in program.seeded if tensors[at].shape == ()])


def used_anywhere(
    program: Program, comm: Comm, used: Collection[int], names: Sequence[str]
) -> frozenset[int]:
    """The outputs, which are called so, to which some rank gives a gradient; all ranks call this, in each
    backward.

    What leaves whole is the same on all ranks, and so is its gradient: all give it one, or none does.
    """
    if len(program.seeded) < 2 or comm.world == 1:
        return frozenset(used)
    counts = comm.tally([int(at in used) for at in program.seeded], "the agreement on gradients")
    uses = dict(zip(program.seeded, counts, strict=True))
    unlike = [at for at, count in uses.items() if program.leaves[at] == "whole" and 0 < count < comm.world]
    if unlike:
        said = [f"`{names[at]}`" if at < len(names) else f"output {at}" for at in sorted(used)]
        raise _unlike(comm.all_gather_objects(", ".join(said)))
    return frozenset(at for at, count in uses.items() if count)


@functools.lru_cache(maxsize=64)
def _reach(graph: str, used: tuple[int, ...]) -> Reach:
    names, positions = reached_from(graph, used)
    return Reach(frozenset(names), frozenset(positions))


def _unlike(given: Sequence[str]) -> RuntimeFault:
    ranks: dict[str, list[int]] = {}
    for rank, outputs in enumerate(given):
        ranks.setdefault(outputs, []).append(rank)
    error = RuntimeFault(
        "SW0818",
        "the ranks begin backward from different outputs",
        why=" | ".join(f"{listed(who)}: {outputs or 'none'}" for outputs, who in ranks.items()),
        fix="compute the same loss on all ranks, of the same outputs of the model",
    )
    error.everywhere = True
    return error
