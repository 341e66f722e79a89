"""Ranks that have built other models than rank 0 are told so, all of them, before anything is compiled.

Compared is what modules and tensors there are, by name, class, mode, shape and dtype. Values are compared
later, and may differ: then all ranks start with those of rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import RuntimeFault, with_article
from ..runtime import Comm
from ..runtime.agreement.agreement import number_of
from ..runtime.agreement.alike import same_everywhere
from ..runtime.communication.verdicts import listed


def require_one_model(comm: Comm, module: nn.Module) -> None:
    """All ranks call this, and all raise what any of them has to."""
    if comm.world == 1:
        return
    lines = [*_described(module)]
    if same_everywhere(comm, [number_of("\n".join(lines).encode())]):
        return
    error = _difference(comm.all_gather_objects(lines))
    error.everywhere = True
    raise error


def _described(module: nn.Module) -> Iterator[str]:
    if not isinstance(module, nn.Module):
        yield with_article(type(module).__name__)
        return
    for path, part in module.named_modules(remove_duplicate=False):
        # What other classes say of themselves may be another text in each process.
        known = type(part).__module__.startswith("torch.nn.")
        mode = "" if part.training else " in evaluation mode"
        said = f"{type(part).__name__}({part.extra_repr() if known else ''}){mode}"
        yield f"`{path or 'the model'}`: {said}"
    for name, parameter in module.named_parameters(remove_duplicate=False):
        frozen = "" if parameter.requires_grad else ", frozen"
        yield f"`{name}`: {_kind(parameter)}{frozen}"
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield f"`{name}`: {_kind(buffer)}"


def _kind(tensor: Tensor) -> str:
    if is_lazy(tensor):
        return "without a shape"
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _difference(of_ranks: Sequence[Sequence[str]]) -> RuntimeFault:
    ranks = [rank for rank, lines in enumerate(of_ranks) if lines != of_ranks[0]]
    ours, theirs = of_ranks[0], of_ranks[ranks[0]]
    here, there = _first_without(ours, theirs), _first_without(theirs, ours)
    return RuntimeFault(
        "SW0833",
        f"{listed(ranks)} built another model than rank 0",
        why=f"rank 0 has {here or 'no more'}, rank {ranks[0]} has {there or 'none of that'}",
        fix="build the model from the same configuration on every rank; only its values may differ",
    )


def _first_without(lines: Sequence[str], others: Sequence[str]) -> str:
    known = set(others)
    return next((line for line in lines if line not in known), "")
