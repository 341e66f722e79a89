"""This rank's parts of what the caller gives to one forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import RuntimeFault
from .program import TensorInfo
from .regions import Region, cut, local_factors, shape_of, whole
from .worker import Worker

Shape = tuple[int, ...]


def fits(worker: Worker, values: Sequence[Tensor], given: str) -> bool:
    """Whether a program is for tensors of these shapes and dtypes, which are `global` or `local`."""
    expected = _expected(worker, given)
    return all(
        (tuple(value.shape), value.dtype) == expected[at] for at, value in enumerate(values) if at in expected
    )


def parts(worker: Worker, values: Sequence[Tensor], given: str) -> list[Tensor]:
    """What the rank's forward takes, cut out of global tensors or already local."""
    return [
        _part(worker, worker.program.tensors[number], region, values, given)
        for number, region in zip(worker.role.inputs, worker.table.inputs, strict=True)
    ]


def refuse_other_dtypes(worker: Worker, values: Sequence[Tensor]) -> None:
    """Another shape is another program, another dtype a mistake."""
    for tensor in worker.program.tensors.values():
        if tensor.kind == "input" and values[tensor.position].dtype != tensor.dtype:
            raise RuntimeFault(
                "SW0735",
                f"input {tensor.names[0]} is of {values[tensor.position].dtype},"
                f" in the example it was of {tensor.dtype}",
                why="a program is made for other shapes by itself, but not for other dtypes",
                fix=f"give it as {tensor.dtype}, or parallelize the model with an example of this dtype",
            )


def _expected(worker: Worker, given: str) -> dict[int, tuple[Shape, torch.dtype]]:
    """By the position of the input; a local shape only where this rank reads the input."""
    tensors = worker.program.tensors
    if given == "global":
        found = {t.position: (t.shape, t.dtype) for t in tensors.values() if t.kind == "input"}
    else:
        found = {}
        for number, region in zip(worker.role.inputs, worker.table.inputs, strict=True):
            tensor = tensors[number]
            found[tensor.position] = (shape_of(local_factors(region, tensor.factors)), tensor.dtype)
    return found


def _part(worker: Worker, tensor: TensorInfo, region: Region, values: Sequence[Tensor], given: str) -> Tensor:
    expected = tensor.shape if given == "global" else shape_of(local_factors(region, tensor.factors))
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
    return part.to(worker.comm.device)
