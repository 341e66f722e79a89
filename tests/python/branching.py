"""Models with branches on values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

LIMIT = 100.0


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.between(self.first(x)))
        return x.square().mean() / x.detach().square().mean().clamp(min=1)

    def between(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Clamping(Branching):
    """As the layers of DETR do."""

    def between(self, x: Tensor) -> Tensor:
        if not (x.abs() < LIMIT).all():
            limit = min(LIMIT, torch.finfo(x.dtype).max - 1000)
            x = torch.clamp(x, min=-limit, max=limit)
        return x


class Filling(Branching):
    def between(self, x: Tensor) -> Tensor:
        large = x.abs() >= LIMIT
        if x.dim() == 2 and large.any():
            x = x.masked_fill(large, LIMIT)
        return x


class Twice(Branching):
    """The same name for two numbers, each where it is one; and a loop."""

    def between(self, x: Tensor) -> Tensor:
        for _ in range(2):
            if (x > LIMIT).any():
                limit = LIMIT - 1
                x = x.clamp(
                    max=limit,
                )
            if (x < -LIMIT).any():
                limit = -LIMIT
                x = torch.clip(x, min=limit)
        return x


class Either(Branching):
    """One part of the test is not all of it."""

    def between(self, x: Tensor) -> Tensor:
        if (x > LIMIT).any() or (x < -LIMIT).any():
            x = torch.clamp(x, -LIMIT, LIMIT)
        return x


class Otherwise(Branching):
    def between(self, x: Tensor) -> Tensor:
        if (x > LIMIT).any():
            x = torch.clamp(x, max=LIMIT)
        else:
            print("small")
        return x


class Leaving(Branching):
    """What the branch names is read behind it."""

    def between(self, x: Tensor) -> Tensor:
        limit = 1.0
        if (x > LIMIT).any():
            limit = 2.0
            x = torch.clamp(x, max=LIMIT)
        return x * limit


class Dividing(Branching):
    """Of what is not chosen the gradient may be no number."""

    def between(self, x: Tensor) -> Tensor:
        if (x > LIMIT).any():
            x = torch.sqrt(x)
        return x


class Other(Branching):
    """It is another tensor that is clamped."""

    def between(self, x: Tensor) -> Tensor:
        y = x + 1
        if (x > LIMIT).any():
            x = torch.clamp(y, max=LIMIT)
        return x


class Counting(Branching):
    """The branch does something else, too."""

    def between(self, x: Tensor) -> Tensor:
        if (x > LIMIT).any():
            self.count = 1
            x = torch.clamp(x, max=LIMIT)
        return x


class Widening(Branching):
    """What the branch makes has another shape."""

    def between(self, x: Tensor) -> Tensor:
        limits = torch.full((3, 1, 1), LIMIT)
        if (x > LIMIT).any():
            x = torch.clamp(x, max=limits)
        return x


class Swallowing(Branching):
    """The branch fails, and nobody hears of it."""

    def between(self, x: Tensor) -> Tensor:
        try:
            if (x > LIMIT).any():
                limit = self.nothing.limit
                x = torch.clamp(x, max=limit)
        except AttributeError:
            pass
        return x


CHOOSING: list[Callable[[], nn.Module]] = [Clamping, Filling, Twice]
DECIDING: list[Callable[[], nn.Module]] = [
    Either,
    Otherwise,
    Leaving,
    Dividing,
    Other,
    Counting,
    Widening,
    Swallowing,
]
