"""Functions whose rules `test_discover.py` looks for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import registering
import wrong_rules


def attend() -> Any:
    shapes = ((3, 5, 12), (3, 7, 12), (3, 7, 8))
    return registering.attend, tuple(torch.rand(shape) for shape in shapes), {"heads": 4}


def swish() -> Any:
    return torch.ops.registering.swish.default, (torch.rand(4, 6), 1.5)


def averaging() -> Any:
    return wrong_rules.Averaging.apply, (torch.rand(4, 6), torch.rand(6))


def numbered() -> Any:
    return wrong_rules.numbered, torch.rand(4, 6)


def largest() -> Any:
    return wrong_rules.largest, (torch.rand(4, 6),)


def clamped() -> Any:
    """For small numbers it looks like a sum."""
    return lambda x: x.sum(1).clamp(-20, 20), (torch.rand(4, 6),)


def of_halves() -> Any:
    """Odd places before even ones."""
    return lambda x: torch.cat([x[:, 1::2], x[:, ::2]], 1), (torch.rand(4, 6),)


def noisy() -> Any:
    return lambda x: x + torch.rand(6), (torch.rand(4, 6),)


_CALLS = [0]


def _counted(x: Tensor) -> Tensor:
    _CALLS[0] += 1
    return x * _CALLS[0]


def counting() -> Any:
    return _counted, (torch.rand(4, 6),)


def in_place() -> Any:
    return lambda x: x.mul_(2), (torch.rand(4, 6),)


def of_ints() -> Any:
    return lambda x: x + 1, (torch.arange(6),)


def too_many() -> Any:
    return wrong_rules.normal, (torch.zeros(1024, 1025),)


def without_values() -> Any:
    return wrong_rules.normal, (torch.rand(4, 6, device="meta"),)


def empty() -> Any:
    return wrong_rules.normal, (torch.rand(4, 0),)


def failing() -> Any:
    return wrong_rules.product, (torch.rand(4, 6), torch.rand(4, 6))


def not_plain() -> Any:
    return lambda x, given: x, (torch.rand(4, 6), object())


def nothing() -> Any:
    return None


def takes(x: Tensor) -> Tensor:
    return x


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.i0(wrong_rules.Mixing.apply(x)).sum()  # type: ignore[no-untyped-call]


def net() -> Any:
    return Net(), (torch.rand(4, 6),)
