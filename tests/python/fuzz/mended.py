"""Programs that once went wrong, each under the plan that showed it: they hold now."""

from __future__ import annotations

from typing import NamedTuple


class Mended(NamedTuple):
    name: str
    source: str
    plan: str
    """A name, or the text of a plan file."""
    devices: int
    outputs: str = "loss"


MENDED: list[Mended] = [
    Mended(
        "a group norm of one sample with one value a group",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(normal(2, 1))
        self.x3 = nn.Parameter(normal(1))
        self.p4 = nn.Parameter(normal(1))

    def forward(self):
        p1 = self.p1
        x3 = self.x3
        p4 = self.p4
        v3 = F.group_norm(p1, 1, x3, p4, eps=0.1)
        v5 = v3.mean()
        return {"loss": v5}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:5"
devices 2
op %group_norm: split a 2 on 0..2
op %mean: single on 0
""",
        2,
    ),
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
        "a mean over a weight that is repeated",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(normal(2, 2))
        self.p2 = nn.Parameter(normal(2))

    def forward(self):
        p1 = self.p1
        p2 = self.p2
        v1 = p1.mean() * p2.expand(2, 2).sum()
        v5 = v1 * 1.0
        return {"loss": v5}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:6"
devices 1
op %mean: single on 0
op %expand: split a 2 on 0 0
op %sum: split a 2 on 0 0
op %mul: single on 0
op %mul_1: single on 0
""",
        1,
    ),
    Mended(
        "the gradient along a dim",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.x4 = nn.Parameter(normal(2, 2, 2))
        self.qv1 = nn.Parameter(normal(2, 2, 2))

    def forward(self):
        x4 = self.x4
        qv1 = self.qv1
        v3 = torch.gradient(qv1, dim=1)[0]
        v7 = (v3 * x4).sum()
        return {"loss": v7}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "replicate"
devices 2
op %gradient: replicate 2
op %mul: replicate 2
op %sum: single on 0
""",
        2,
    ),
    Mended(
        "a buffer whose new value has other factors",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b3", normal(8))
        self.x5 = nn.Parameter(normal(2, 4, 8))
        self.qv3 = nn.Parameter(normal(2, 4, 8))
        self.qv0 = nn.Parameter(normal(4, 4))

    def forward(self):
        b3 = self.b3
        x5 = self.x5
        qv3 = self.qv3
        qv0 = self.qv0
        v4 = qv0.detach().reshape(-1, 8).mean(0)
        b3.copy_(v4)
        v7 = (qv3 * x5).sum()
        return {"loss": v7}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "replicate"
devices 2
op %detach: single on 0
op %reshape: single on 0
op %mean: single on 0
op %mul: single on 0
op %sum: single on 0
""",
        2,
    ),
    Mended(
        "a constant that comes out of one operator with a parameter",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(1))

    def forward(self):
        ones, p = torch.meshgrid(torch.ones((2,), dtype=D), self.p0, indexing="xy")
        return {"loss": F.soft_margin_loss(p, ones, reduction="sum")}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "apart"
devices 2
op "*": single on 0
op %soft_margin_loss: replicate 2
""",
        2,
    ),
]
