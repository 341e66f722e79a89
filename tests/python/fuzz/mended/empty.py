"""Tensors without elements."""

from __future__ import annotations

from .program import Mended

EMPTY: list[Mended] = [
    Mended(
        "a range without elements",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(2, 0, 1))

    def forward(self):
        p0 = self.p0
        v0 = torch.arange(0, dtype=D).sin().reshape(2, 0, 1)
        v2 = F.mse_loss(v0, p0, reduction='sum')
        v6 = v2 * 1.0
        return {"loss": v6}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:414186"
devices 1
op %arange: single on 0
op %sin: single on 0
op %reshape: single on 0
op %mse_loss: single on 0
op %mul: single on 0
""",
        1,
    ),
    Mended(
        "parameters without elements, read in parts on one device",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p2 = nn.Parameter(normal(1, 2, 0))
        self.x3 = nn.Parameter(normal(1, 0, 2))

    def forward(self):
        p2 = self.p2
        x3 = self.x3
        v2 = torch.matmul(p2, x3)
        v9 = v2.sin().sum()
        return {"loss": v9}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:510945"
devices 2
op %matmul: split m 2, split n 2 on 0 0 1 0
op %sin: single on 0
op %sum: single on 0
""",
        2,
    ),
    Mended(
        "a loss of no rows in parts on one device, computed again",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(8, 6))
        self.register_buffer("b1", torch.randint(8, (0, 6)))

    def forward(self):
        p0 = self.p0
        b1 = self.b1
        v0 = F.embedding(b1, p0)
        v1 = F.linear(v0.sin(), p0)
        v2 = F.cross_entropy(v1.flatten(0, 1), b1.flatten(), reduction='sum') * 0.1
        return {"loss": v2}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "again"
devices 1
use "replicate"
op %cross_entropy_loss: split v 2 on 0 0
recompute %cross_entropy_loss
""",
        1,
    ),
    Mended(
        "overlapping parts of a parameter without elements, which lives on the host",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(0))
        self.p1 = nn.Parameter(normal(0, 5))

    def forward(self):
        p0 = self.p0
        p1 = self.p1
        with torch.no_grad():
            v4 = p0 @ p1
        return {"loss": F.mse_loss(p0 @ p1, v4) * 1.0}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "mine"
devices 2
op %matmul: split n 2 on 1 0
op %matmul_1: split n 2, split n 2 on 0 0 1 0
op %mse_loss: split a 2 on 0..2
op %mul: replicate 2 on 0 0
offload parameters "p0"
offload parameters "p1"
""",
        2,
    ),
    Mended(
        "a parameter of which nothing is read, by operators that are divided",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(2, 3))
        self.register_buffer("b0", torch.zeros(0, dtype=torch.int64))

    def forward(self):
        v1 = self.p0[torch.arange(2)[:, None], self.b0]
        v2 = v1.sin()
        return {"loss": v2.sum()}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "mine"
devices 2
op %arange: split a 2 on 0..2
op %unsqueeze: split a 2 on 0..2
op %index: split i0 2 on 0..2
op %sin: split a 2 on 0..2
op %sum: split a 2 on 0..2
""",
        2,
    ),
    Mended(
        "a copy without elements of which nothing is copied",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(0, 2))
        self.p5 = nn.Parameter(normal(2, 2))

    def forward(self):
        v0 = torch.stack([self.p0, self.p0], -1)
        return {"loss": self.p5.pow(2).mean() + v0.sum()}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "mine"
devices 3
op %stack: replicate 3 on 0..3
op %pow: single on 0
op %mean: single on 0
op %sum: single on 0
op %add: single on 0
param "p0": over (1..3), gather pass, reduce last
""",
        3,
    ),
]
