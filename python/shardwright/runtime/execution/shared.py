"""What arises on the ranks of one block, and all want to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import RuntimeFault
from ..communication.comm import Comm
from ..programs.program import Program


def handed_round(program: Program, comm: Comm, outputs: Sequence[Any]) -> list[Any]:
    """The outputs that leave whole, also where their block does not run."""
    return [_handed(program, comm, at, value) for at, value in enumerate(outputs)]


def known_to_all(program: Program, comm: Comm, loss: Tensor | None) -> Tensor | None:
    """A mean of losses, which only the ranks have that run the last block."""
    if program.blocks == 1:
        return loss
    return _handed(program, comm, program.seeded[0], loss) if len(program.seeded) == 1 else loss


def in_steps_only(program: Program, outputs: Sequence[Any]) -> list[Any]:
    """Backward from these is refused: blocks run it in the order that the timetable says."""

    def marked(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        anchor = torch.zeros((), requires_grad=True)
        return _InSteps.apply(value, anchor, program.goes_on) if floats else value

    return [marked(value) for value in outputs]


class _InSteps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor, goes_on: bool) -> Tensor:
        ctx.goes_on = goes_on
        return value.detach().view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeFault(
            "SW0812",
            "a backward by hand, under a plan that cuts the model into blocks",
            why="blocks run forward and backward alternately, as the timetable of a whole step says",
            fix="`model.train_step(batches)`, which gives the gradients of the batches of the call before;"
            " after the last one `model.finish()` gives its own"
            if ctx.goes_on
            else "`loss = model.train_step(batches)`, which is the whole step",
        )


def _handed(program: Program, comm: Comm, at: int, value: Any) -> Any:
    """From the first rank that has it, if some have all of it and others nothing."""
    owners = sorted(rank for role in program.roles for rank in role.ranks if role.outputs[at] is not None)
    if len(owners) in (0, program.world):
        return value
    output, region = program.role(owners[0]).outputs[at], program.ranks[owners[0]].outputs[at]
    assert output is not None and region is not None
    tensor = program.tensors[output.tensor]
    if [(0, size) for dim in tensor.factors for size in dim] != [tuple(interval) for interval in region]:
        return value
    if not isinstance(value, Tensor):
        dtype = tensor.read_as or tensor.dtype
        value = torch.empty(tensor.shape, dtype=dtype, device=comm.device)
    given = value.detach().contiguous().clone()
    comm.broadcast(given, owners[0])
    return given
