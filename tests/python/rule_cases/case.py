"""What a case is, and how operands are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardwright.capture.passes.operator_aliases import KNOWN

Spec = tuple[str, Callable[[], Tensor]]
"""What an operand is (`param`, `input`, `buffer`), and how it is made, under a seed."""

aten = torch.ops.aten
_OURS = ("expert_", "experts.", "function.", "written.")


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    targets: frozenset[str]
    """The operators that are split: all of them have the same dims."""
    fn: Callable[..., Any]
    operands: tuple[Spec, ...]
    dims: dict[str, int]
    made: tuple[int, ...] = ()
    """Operands in which the operators are jointly linear."""
    others: frozenset[str] = frozenset()
    """Further operators of the function, which stay whole."""
    random: bool = False
    halves: bool = True
    """Whether PyTorch has these operators in 16 bits."""
    parts: tuple[int, ...] = (2, 3)
    """In how many parts each dim is split, if it has as many elements; else in two."""
    about: bool = False
    """Whether they are composed of several steps: what they keep is then told to a factor of three."""


CASES: list[Case] = []


def case(
    name: str, targets: str, fn: Callable[..., Any], *operands: Spec, dims: str = "", **more: Any
) -> None:
    """`targets` without `aten.`, and without `.default`."""
    sizes = dict(dim.split("=") for dim in dims.split())
    CASES.append(
        Case(
            name,
            overloads(targets),
            fn,
            operands,
            {dim: int(size) for dim, size in sizes.items()},
            others=overloads(more.pop("others", "")),
            **more,
        )
    )


def overloads(names: str) -> frozenset[str]:
    """`expert_linear`, `experts`, `function` and `written` are ours, all others are ATen's, by the names that
    captured graphs have."""
    listed = (name if "." in name else f"{name}.default" for name in names.split())
    return frozenset(f"shardwright.{n}" if n.startswith(_OURS) else _captured(n) for n in listed)


def _captured(name: str) -> str:
    packet, overload = name.split(".")
    target = getattr(getattr(aten, packet), overload)
    return str(KNOWN.get(target, target))


def normal(*shape: int) -> Spec:
    return "param", lambda: torch.randn(shape, dtype=torch.float64)


def between(low: float, high: float, *shape: int) -> Spec:
    return "param", lambda: low + (high - low) * torch.rand(shape, dtype=torch.float64)


def data(*shape: int) -> Spec:
    """Floats without a gradient."""
    return "input", lambda: torch.randn(shape, dtype=torch.float64)


def ints(bound: int, *shape: int) -> Spec:
    return "input", lambda: torch.randint(bound, shape)


def bools(*shape: int) -> Spec:
    return "input", lambda: torch.rand(shape) < 0.6


def given(values: Any, kind: str = "input") -> Spec:
    return kind, lambda: torch.tensor(values)


def buffer(low: float, high: float, *shape: int) -> Spec:
    return "buffer", between(low, high, *shape)[1]


def each(names: str) -> Callable[..., list[Any]]:
    """Calls the ATen operators of these names with the same operands."""
    return lambda *args: [getattr(aten, name.split(".")[0])(*args) for name in names.split()]


def alike(name: str, names: str, *operands: Spec, **more: Any) -> None:
    case(name, names, each(names), *operands, **more)
