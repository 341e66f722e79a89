"""Random values for a model on `meta`, for as long as it is compared with its graph.

Whether export lost something does not depend on what the values are. Whether it can be found out here
depends on how large the model is: what takes more memory or time than is allowed here is not compared.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from inspect import BoundArguments
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ...precision import Precision
from ..casts import Casting
from ..dispatch import called
from ..lines import said_by
from ..state.memory import has_no_value, identity
from ..state.swap import borrowed, following, same_randomness
from .against_module import Call, forward, missing_value

_SEED = 4321
# Of a forward. With gradients and once more, on both sides, it is a dozen times as much: seconds.
_MOST_OPERATIONS = {"cpu": 3e10, "cuda": 3e13}
# Of a model and its example on the CPU; anywhere this share of the memory: there are copies and gradients.
_MOST_BYTES, _SHARE = 2**30, 8
# From and below which integers are. Tokens, labels and masks of nearly all models may be one of these.
_INTEGERS = ((0, 2), (1, 2), (0, 1))


@contextmanager
def standing_in(
    module: nn.Module, bound: BoundArguments, precision: Precision | None, kinds: Iterable[str]
) -> Iterator[Call | str]:
    """The call with values, on one of these kinds of devices, or why there is none."""
    reasons: list[str | None] = []
    for kind in kinds:
        reasons = [too_large(module, bound, kind)]
        for integers in () if reasons[0] else _INTEGERS:
            with _with_values(module, bound, precision, torch.device(kind), integers) as call:
                why = _fails(call, _MOST_OPERATIONS[kind])
                if why is None:
                    yield call
                    return
            reasons.append(why)
            if why == _TOO_MUCH:
                break
    yield f"{missing_value(module, bound)} has no value, and {next(why for why in reasons if why)}"


@contextmanager
def moved(module: nn.Module, bound: BoundArguments, precision: Precision | None, kind: str) -> Iterator[Call]:
    """The call with its own values, on another kind of device."""
    with _with_values(module, bound, precision, torch.device(kind), _INTEGERS[0]) as call:
        yield call


def kinds_here(device: str | None, casts_of: str | None = None) -> list[str]:
    """Those on which what is for a type of devices may be compared; with one kind's casts only there."""
    kinds = ["cuda", "cpu"] if device == "cuda" and torch.cuda.is_available() else ["cpu"]
    return [kind for kind in kinds if casts_of in (None, kind)]


def too_large(module: nn.Module, bound: BoundArguments, kind: str) -> str | None:
    held = {identity(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    needed = sum(
        t.numel() * t.element_size() for t in [*held.values(), *_tensors((bound.args, bound.kwargs))]
    )
    most = _memory(kind) // _SHARE
    most = min(most, _MOST_BYTES) if kind == "cpu" else most
    if needed <= most:
        return None
    return f"random values are not made for {needed / 2**30:.1f} GiB, more than {most / 2**30:.1f} GiB"


def _memory(kind: str) -> int:
    if kind == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # another system
        return _SHARE * _MOST_BYTES


@contextmanager
def _with_values(
    module: nn.Module,
    bound: BoundArguments,
    precision: Precision | None,
    device: torch.device,
    integers: tuple[int, int],
) -> Iterator[Call]:
    values = _Values(device, integers)
    made: dict[Hashable, Tensor] = {}

    def table(tensor: Tensor) -> Tensor:
        key = identity(tensor)
        if key not in made:
            made[key] = values.held(tensor)
        return made[key]

    args, kwargs = pytree.tree_map_only(Tensor, values.given, (bound.args, bound.kwargs))
    bound = bound.signature.bind(*args, **kwargs)
    with borrowed(module, table, following(module, table)):
        yield Call(module, bound, Casting(module, precision))


_TOO_MUCH = "a forward with random values takes too long"


def _fails(call: Call, most: float) -> str | None:
    """Why there is nothing to compare."""
    counting = _Counting(most)
    try:
        with same_randomness(), torch.no_grad(), counting:
            results = _tensors(forward(call))
    except Exception as error:
        return _TOO_MUCH if counting.over else f"with random values the model fails ({said_by(error)})"
    floats = [t for t in results if t.is_floating_point() and t.numel()]
    finite = not floats or any(bool(t.isfinite().any()) for t in floats)
    return None if finite else "with random values no result is finite"


class _TooMuch(Exception):
    pass


class _Counting(TorchDispatchMode):
    """Stops a forward that takes too many operations."""

    def __init__(self, most: float):
        super().__init__()
        self._left = most

    @property
    def over(self) -> bool:
        return self._left < 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = called(func, args, kwargs)
        self._left -= sum(tensor.numel() for tensor in _tensors(result))
        count = flop_registry.get(getattr(func, "_overloadpacket", None))
        if count is not None:
            self._left -= count(*args, **(kwargs or {}), out_val=result)
        if self.over:
            raise _TooMuch
        return result


class _Values:
    """Makes tensors with values, on one device, the same ones each time."""

    def __init__(self, device: torch.device, integers: tuple[int, int]):
        self._device, self._integers = device, integers
        self._generator = torch.Generator().manual_seed(_SEED)

    def given(self, tensor: Tensor) -> Tensor:
        """An argument."""
        return self._made(tensor, 1.0).requires_grad_(tensor.requires_grad)

    def held(self, tensor: Tensor) -> Tensor:
        """A parameter, buffer or constant: of a size that these have, and those of one dim positive."""
        if not has_no_value(tensor) and tensor.device.type == self._device.type:
            return tensor
        rows = tensor.numel() // tensor.shape[0] if tensor.dim() > 1 and tensor.numel() else 0
        made = self._made(tensor, rows**-0.5 if rows else 0.0)
        if not isinstance(tensor, nn.Parameter):
            return made
        parameter = nn.Parameter(made, tensor.requires_grad)
        parameter.__dict__.update(vars(tensor))
        return parameter

    def _made(self, tensor: Tensor, size: float) -> Tensor:
        if not has_no_value(tensor):
            return tensor.detach().to(self._device)
        overlaps = any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        if not overlaps:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device)
        return made.copy_(self._drawn(tensor.shape, tensor.dtype, size))

    def _drawn(self, shape: torch.Size, dtype: torch.dtype, size: float) -> Tensor:
        if not (dtype.is_floating_point or dtype.is_complex):
            return torch.randint(*self._integers, shape, generator=self._generator)
        wide = dtype if dtype.is_complex or dtype == torch.float64 else torch.float32
        if not size:
            return 0.5 + torch.rand(shape, dtype=wide, generator=self._generator)
        return size * torch.randn(shape, dtype=wide, generator=self._generator)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
