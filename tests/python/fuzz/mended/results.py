"""What operators and calls give to others."""

from __future__ import annotations

from .program import Mended

RESULTS: list[Mended] = [
    Mended(
        "a result that nobody asked for, and a panic",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qv1 = nn.Parameter(normal(2))
        self.qv0 = nn.Parameter(normal(2))

    def forward(self):
        qv1 = self.qv1
        qv0 = self.qv0
        v2 = torch.hypot(qv0.abs() + 0.5, qv0)
        v4 = qv1.sin().sum()
        return {"loss": v4, "v2": v2}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:551387"
devices 2
op %abs: single on 0
op %add: split a 2
op %hypot: split a 2 on 1 1
op %sin: single on 0
op %sum: single on 0
""",
        2,
    ),
    Mended(
        "a result that is a copy of a parameter",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(2, 2))
        self.register_buffer("b1", normal(2, 2))

    def forward(self):
        changed = self.b1.clone()
        changed.copy_(self.p0)
        return {"loss": self.p0.sin().sum(), "copy": self.p0.clone(), "changed": changed}


def inputs():
    return ()
""",
        "replicate",
        2,
        "all",
    ),
    Mended(
        "a call that gives a buffer as it is, which another call reads",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b0", normal(2, 1, 2))
        self.p1 = nn.Parameter(normal())
        self.p2 = nn.Parameter(normal(2, 1, 2))

    def forward(self):
        b0 = self.b0
        p1 = self.p1
        p2 = self.p2
        v0 = torch.lerp(*torch.broadcast_tensors(b0, p1), 0.3)
        v1 = (v0 * p2).sum()
        return {"loss": v1}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "given as it is"
devices 2
op %broadcast_tensors_0: split a 2 on 0..2
op %lerp: split a 2, replicate 2 on 1 0 1 1
op %mul: single on 0
op %sum: single on 0
""",
        2,
    ),
]
