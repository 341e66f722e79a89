"""What arises on the ranks of one block, and all want to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..communication.comm import Comm
from ..programs.program import Program
from ..programs.regions import shape_of


def handed_round(program: Program, comm: Comm, outputs: Sequence[Any]) -> list[Any]:
    """The outputs that leave whole, also where their block does not run."""
    return [_handed(program, comm, at, value) for at, value in enumerate(outputs)]


def known_to_all(program: Program, comm: Comm, loss: Tensor | None) -> Tensor | None:
    """A mean of losses, which only the ranks have that run the last block."""
    if program.blocks == 1:
        return loss
    outputs = (enumerate(role.outputs) for role in program.roles)
    seeded = {at for all_ in outputs for at, output in all_ if output and output.grad}
    return _handed(program, comm, seeded.pop(), loss) if len(seeded) == 1 else loss


def _handed(program: Program, comm: Comm, at: int, value: Any) -> Any:
    owners = [role.ranks[0] for role in program.roles if role.outputs[at] is not None]
    if not owners or len(owners) == len(program.roles):
        return value
    number = next(role.outputs[at] for role in program.roles if role.outputs[at] is not None)
    assert number is not None
    tensor = program.tensors[number.tensor]
    whole = tuple(shape_of(tensor.factors))
    if not isinstance(value, Tensor):
        value = torch.empty(whole, dtype=tensor.read_as or tensor.dtype, device=comm.device)
    given = value.detach().contiguous().clone()
    comm.broadcast(given, min(owners))
    return given
