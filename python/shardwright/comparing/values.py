"""The module that is compared: with values, and in another dtype."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..capture.state.memory import has_no_value
from ..errors import RuntimeFault
from ..runtime.execution.inputs import Arguments
from ..start.compiling import require_one_of
from ..weights.deferring import recorded

OWN = "model"
# The module, the copy that is stepped and its gradients, what ranks are given, their shards and gradients,
# and what is taken of these.
COPIES = 8
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def with_values(module: nn.Module, example: Arguments) -> nn.Module:
    """The module itself, or one with the values that `deferred` has recorded; else it is refused."""
    inputs = [x for x in pytree.tree_leaves(example) if isinstance(x, Tensor)]
    if any(has_no_value(x) for x in inputs):
        raise _without_values("an example input", "give example inputs with values")
    if any(x.device.type not in ("cpu", "meta") for x in [*inputs, *(t for _, t in _held(module))]):
        raise RuntimeFault(
            "SW0880",
            "the model is not on the CPU, where it is run beside its program",
            why="ranks are processes of this machine, which talk by Gloo",
            fix="give `module.cpu()` and example inputs on the CPU",
        )
    lacking = [name for name, tensor in _held(module) if has_no_value(tensor)]
    if not lacking:
        return module
    record = recorded(module)
    if record is None or not set(lacking) <= record.names():
        raise _without_values(
            f"`{lacking[0]}`" + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""),
            "build the model without `torch.device('meta')`, or with `sw.deferred`, which records how it is"
            " initialised; of a large model, a copy with fewer layers",
        )
    made = copy.deepcopy(module).to_empty(device="cpu")
    there = dict(_held(made))
    with torch.no_grad():
        for name, value in record.values(lacking):
            there[name].copy_(value)
    return made


def _held(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _without_values(what: str, fix: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0880",
        "a model without values cannot be run beside its program",
        why=f"{what} is on meta",
        fix=fix,
    )


def require_room(module: nn.Module) -> None:
    """Refuses a model that does not fit, with all that is made of it; it may be without values."""
    needed = COPIES * sum(tensor.numel() * 8 for _, tensor in _held(module))
    there = _memory()
    if needed > there:
        raise RuntimeFault(
            "SW0881",
            "the model is too large to be run here, beside its program",
            why=f"in float64, with gradients and the shards of all ranks, that takes"
            f" {needed / 2**30:.1f} GiB, and {there / 2**30:.1f} GiB are free",
            fix="verify a copy with fewer layers: all that is not repeated is the same there;"
            " `shardwright check` proves the whole, and needs no weights",
        )


def _memory() -> int:
    """What is free; where the system does not say it, no more than nobody has."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        [free] = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        return 2**62
    return free * 1024


def in_dtype(module: nn.Module, example: Arguments, dtype: str) -> tuple[nn.Module, Arguments]:
    """A copy that computes in a dtype, floating parameters, buffers and inputs included."""
    if dtype == OWN:
        return module, example
    wanted = DTYPES[dtype]
    made = copy.deepcopy(module).to(wanted)

    def cast(x: Tensor) -> Tensor:
        other = x.detach().to(wanted) if x.is_floating_point() else x
        return other.requires_grad_(x.requires_grad) if other is not x else x

    cast_example: Arguments = pytree.tree_map_only(Tensor, cast, example)
    return made, cast_example


def dtypes_of(module: nn.Module, example: Arguments, asked: list[str]) -> list[str]:
    """Float64 first, for what is exact says most; the model's own once, if that is one of them."""
    for dtype in asked:
        require_one_of("dtypes", dtype, (OWN, *DTYPES))
    tensors = [
        *(t for _, t in _held(module)),
        *(x for x in pytree.tree_leaves(example) if isinstance(x, Tensor)),
    ]
    floating = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    alone = next((name for name, dtype in DTYPES.items() if floating == {dtype}), None)
    wanted = dict.fromkeys(alone if dtype == OWN and alone else dtype for dtype in asked)
    return sorted(wanted, key=lambda dtype: dtype != "float64")
