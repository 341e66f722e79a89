"""A device that has no memory left: what the compiler told of a step is said beside what PyTorch says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ...errors import RuntimeFault

if TYPE_CHECKING:
    from ..communication.comm import Comm
    from ..programs.program import Program

# What helps against which kind of memory, and the word of a plan that has it already.
_HELPS = {
    "activations": (
        ("recompute", "recompute activations (`x recompute`)"),
        ("offload:activations", "offload them to the host (`x offload:activations`)"),
        ("", "use more and smaller micro-batches (`micro_batches=`)"),
    ),
    "working": (
        ("", "use more and smaller micro-batches (`micro_batches=`)"),
        ("megatron", "shard operators"),
    ),
    "optimizer": (
        ("zero", "shard the optimizer's state over ranks (`zero1` to `zero3`)"),
        ("offload:state", "offload it to the host (`x offload:state`)"),
    ),
    "parameters": (
        ("zero3", "shard parameters over ranks (`zero3`)"),
        ("offload:parameters", "offload them to the host (`x offload:parameters`)"),
    ),
    "gradients": (("zero", "shard them over ranks (`zero2`, `zero3`)"),),
}
_KINDS = {"buffers": "parameters", "constants": "parameters", "inputs": "activations"}


class OutOfMemory(RuntimeFault, torch.OutOfMemoryError):
    """Also PyTorch's error, which loops may wait for."""


@contextmanager
def memory_explained(program: Program, comm: Comm, where: str) -> Iterator[None]:
    """Around what runs a program."""
    try:
        yield
    except OutOfMemory:
        raise
    except torch.OutOfMemoryError as error:
        raise out_of_memory(program, comm, where, error) from error


def out_of_memory(program: Program, comm: Comm, where: str, error: Exception) -> OutOfMemory:
    estimate = program.memory
    said = [f"PyTorch says: {str(error).splitlines()[0] if str(error) else type(error).__name__}"]
    said += [_line_of_estimate(estimate, comm.rank)] if estimate else []
    said += _there(comm.device)
    return OutOfMemory(
        "SW0792",
        f"there is no memory left on {comm.device}, in {where}",
        why="; ".join(said),
        fix=_fix(program, estimate),
    )


def _line_of_estimate(estimate: Mapping[str, Any], rank: int) -> str:
    here = estimate["ranks"][rank] if rank < len(estimate["ranks"]) else estimate["total"]
    kinds = sorted(((size, name) for name, size in estimate["peak"].items() if size), reverse=True)
    used = ", ".join(f"{_size(size)} {name}" for size, name in kinds)
    most = f", and {_size(estimate['total'])} of rank {estimate['rank']}, which needs most"
    most = "" if estimate["rank"] == rank else most
    at = f", in {estimate['at']}" if estimate["at"] else ""
    return f"the compiler predicted {_size(here)} of this rank{most}: {used}{at}"


def _there(device: torch.device) -> list[str]:
    if device.type != "cuda" or not torch.cuda.is_available():
        return []
    free, total = torch.cuda.mem_get_info(device)
    ours, kept = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    return [
        f"the device has {_size(total)}, of which {_size(free)} are free, tensors of this process take"
        f" {_size(ours)}, and PyTorch keeps {_size(kept - ours)} more; CUDA and NCCL take some more"
    ]


def _fix(program: Program, estimate: Mapping[str, Any] | None) -> str:
    """What there is most of comes first, and what the plan has already does not come."""
    peak = dict(estimate["peak"]) if estimate else {"activations": 2, "optimizer": 1}
    kinds = sorted(peak, key=lambda kind: -peak[kind])
    helps: list[str] = []
    for kind in kinds:
        for word, help_ in _HELPS.get(_KINDS.get(kind, kind), ()) if peak[kind] else ():
            if help_ not in helps and not (word and word in program.plan):
                helps.append(help_)
    return f"{'; or '.join(helps[:3])}; `memory=` of `sw.parallelize` refuses a plan that does not fit"


def _size(count: int) -> str:
    from ...report.memory import size_of

    return size_of(count)
