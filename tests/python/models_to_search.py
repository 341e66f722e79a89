"""Models on which the search is tested: in each something is as in no usual one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models import Model

WIDTH = 32
SAID = 64


class Mixer(nn.Module):
    """A branch beside what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Twice(nn.Module):
    """Layers that are called twice, and an embedding that is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.said = nn.Embedding(SAID, WIDTH)
        self.layers = nn.ModuleList(Mixer() for _ in range(2))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.said(tokens)
        for layer in [*self.layers, *self.layers]:
            x = layer(x)
        return F.cross_entropy(F.linear(x, self.said.weight).flatten(0, 1), targets.flatten())


class Attention(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        read = (split(part(x)) for part in (self.queries, self.keys, self.values))
        found = F.scaled_dot_product_attention(*read, is_causal=True)
        return self.out(found.transpose(1, 2).flatten(2))


class Side(nn.Module):
    """Attention and a product that read one value."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y) + self.down(F.gelu(self.up(y)))


class Sides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.said = nn.Embedding(SAID, WIDTH)
        self.layers = nn.ModuleList(Side() for _ in range(2))
        self.head = nn.Linear(WIDTH, SAID)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.said(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Chosen(nn.Module):
    """Several read one value, each for a part of the sum."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, count)
        each = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(count)
        ]
        self.experts = nn.ModuleList(each)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        share = F.softmax(self.gate(y), -1)
        parts = [share[..., at : at + 1] * expert(y) for at, expert in enumerate(self.experts)]
        return x + torch.stack(parts).sum(0)


class Parts(nn.Module):
    """Some parameters are frozen, some outputs are wanted by nobody, and one more is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mixer(), Chosen(), Mixer()])
        self.aside = nn.Linear(WIDTH, WIDTH)
        self.layers[0].requires_grad_(False)

    def forward(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(x, targets), self.aside(x).relu()


class Uneven(nn.Module):
    """Sizes that nothing divides, a norm over the batch, and a value that grows behind its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 13)
        self.norm = nn.BatchNorm1d(13)
        self.rows = nn.Parameter(torch.randn(1, 6, 13))
        self.second = nn.Linear(13, 11)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        y = self.norm(self.first(x)).unsqueeze(1).expand(-1, 6, -1) + self.rows
        return F.mse_loss(self.second(torch.tanh(y)).mean(1), targets)


def _tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(SAID, (4, 6)), torch.randint(SAID, (4, 6))


MODELS: dict[str, Callable[[], Model]] = {
    "twice": lambda: (Twice(), _tokens()),
    "sides": lambda: (Sides(), _tokens()),
    "parts": lambda: (Parts(), (torch.randn(4, 6, WIDTH), torch.randn(4, 6, WIDTH))),
    "uneven": lambda: (Uneven(), (torch.randn(9, 7), torch.randn(9, 11))),
}
