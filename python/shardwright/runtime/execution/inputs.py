"""What the caller gives: batches to calls of the model, and this rank's parts of a call."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from ...errors import RuntimeFault, with_article
from ..programs.cuts import physical
from ..programs.program import TensorInfo
from ..programs.regions import Region, cut, local_factors, shape_of, whole
from .worker import Worker

Shape = tuple[int, ...]
Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class Describes(Protocol):
    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[Tensor]]:
        """The structure of a call, and its tensors."""


class Reads(Describes, Protocol):
    def read(self, structure: Hashable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """What is read of a call of this structure by programs that may be for it."""


@dataclass(frozen=True)
class Call:
    """`structure` is all that a program depends on besides the mode and the tensors' kinds."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    structure: Hashable
    tensors: list[Tensor]
    shapes: list[Shape]
    """Of the whole tensors, where `tensors` may be this rank's parts of them."""
    lengths: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    """Of the parts of all ranks, for each tensor and dim that was given in parts."""
    read: tuple[str, ...] = ()
    """What programs read of it that may be for it, besides what its structure says."""
    contents: tuple[int, ...] = ()
    """What stands for the values that each rank was given, where that is compared."""

    def whole(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments that all ranks together are called with; what was given in parts has no values."""
        shapes = {id(tensor): shape for tensor, shape in zip(self.tensors, self.shapes, strict=True)}

        def whole(tensor: Tensor) -> Tensor:
            if tuple(tensor.shape) == shapes[id(tensor)]:
                return tensor
            made = torch.empty(shapes[id(tensor)], dtype=tensor.dtype, device="meta")
            return made.requires_grad_(tensor.requires_grad)

        known = (tuple(self.args), dict(self.kwargs))
        return pytree.tree_map_only(Tensor, lambda x: whole(x) if id(x) in shapes else x, known)


def batches_of(given: Any, inputs: int) -> list[Arguments]:
    """The micro-batches of a step. A list of tensors is one batch of a model of several `inputs`, as
    loaders make them."""
    if not isinstance(given, list):
        return [arguments_of(given)]
    if not given:
        raise RuntimeFault(
            "SW0706",
            "train_step was given no batch",
            why="it takes the mean of the losses of its batches",
            fix="give it one batch, or a list of at least one",
        )
    one = inputs > 1 and all(isinstance(x, Tensor) for x in given)
    return [arguments_of(batch) for batch in ([tuple(given)] if one else given)]


def call_of(
    captured: Describes, args: Sequence[Any], kwargs: Mapping[str, Any], *, values: bool = True
) -> Call:
    """Tensors need no `values` where only the kind of call matters."""
    args, kwargs = tuple(plain(x) for x in args), {name: plain(x) for name, x in kwargs.items()}
    structure, tensors = captured.describe(args, kwargs)
    if values:
        _refuse_without_values(tensors)
    return Call(args, kwargs, structure, tensors, [tuple(x.shape) for x in tensors])


def read_by(programs: Reads, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """A call, with what decides between the programs that there are."""
    call = call_of(programs, args, kwargs)
    return replace(call, read=programs.read(call.structure, call.args, call.kwargs))


def arguments_of(batch: Any) -> Arguments:
    """A mapping names its arguments, a tuple or list has them in order, anything else is the only one."""
    if isinstance(batch, Mapping):
        return (), batch
    return (batch if isinstance(batch, (tuple, list)) else (batch,)), {}


def plain(value: Any) -> Any:
    """Mappings of any class as dicts, at any depth, and tensors as their memory says; refuses arrays that are
    no tensors."""
    if isinstance(value, Mapping) and not pytree.tree_is_leaf(value):
        return value if type(value) is not dict else {key: plain(x) for key, x in value.items()}
    if isinstance(value, Mapping):
        return {key: plain(x) for key, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(x) for x in value)
    if isinstance(value, Tensor):
        return physical(value)
    _refuse_source(value)
    if hasattr(value, "__array_interface__") and not isinstance(value, (bool, int, float)):
        raise RuntimeFault(
            "SW0789",
            f"an argument of the model is a {type(value).__module__}.{type(value).__name__}",
            why="its values would become a part of the program: only tensors are inputs",
            fix="give tensors: torch.as_tensor(x)",
        )
    return value


def _refuse_source(value: Any) -> None:
    """A loader, a data set or an iterator has batches, and is none."""
    if isinstance(value, (DataLoader, Dataset, Iterator)):
        raise RuntimeFault(
            "SW0832",
            f"an argument of the model is {with_article(type(value).__name__)}, not a batch",
            why="batches come out of it, and the model is called with one of them",
            fix="give one batch: `example = next(iter(loader))`",
        )


def fits(worker: Worker, call: Call) -> bool:
    """Whether a program is for whole tensors of these shapes and dtypes, and gives the gradients that
    they require, no more and no less."""
    given = call.tensors
    tensors = [tensor for tensor in worker.program.tensors.values() if tensor.kind == "input"]
    if torch.is_grad_enabled() and any(given[t.position].requires_grad != t.grad for t in tensors):
        return False
    return all(call.shapes[t.position] == t.shape and given[t.position].dtype == t.dtype for t in tensors)


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
                why="another shape gets a program of its own, but another dtype does not",
                fix=f"give it as {tensor.dtype}, or parallelize the model with an example of this dtype",
            )


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
    if value.requires_grad and not tensor.grad and torch.is_grad_enabled():
        raise RuntimeFault(
            "SW0718",
            f"input {name} requires a gradient",
            why="it did not in the example, so the program does not compute its gradient",
            fix="detach it, or let it require a gradient in the example",
        )
    part = value.detach()
    if given == "global" and region != whole(tensor.factors):
        part = cut(part, tensor.factors, region)
    return on_device(part, worker.comm.device)


def on_device(x: Tensor, device: torch.device) -> Tensor:
    """The host does not wait for the copy: to a GPU it goes out of pinned memory, which PyTorch keeps until
    then."""
    if x.device == device:
        return x
    if x.device.type == "cpu" and device.type == "cuda" and not x.is_pinned():
        x = x.contiguous().pin_memory()
    # What comes to the host is read there at once.
    return x.to(device, non_blocking=device.type != "cpu")


def _refuse_without_values(tensors: Sequence[Tensor]) -> None:
    if any(tensor.is_meta for tensor in tensors):
        raise RuntimeFault(
            "SW0789",
            "an argument of the model is a tensor on `meta`",
            why="it has a shape and no values",
            fix="give the model tensors with values; only the example of `parallelize` may be on meta",
        )
