"""Gradients that are zeros, and results without one."""

from __future__ import annotations

from .program import Mended

GRADIENTS: list[Mended] = [
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
        "a parameter that only labels are made of",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(normal(2, 2))
        self.p2 = nn.Parameter(normal(2, 2))

    def forward(self):
        return {"loss": F.hinge_embedding_loss(self.p1, self.p2.sign(), reduction="sum")}


def inputs():
    return ()
""",
        "replicate",
        2,
    ),
    Mended(
        "an operator that nothing reads, before a part without gradients",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(3, 2))
        self.p1 = nn.Parameter(normal(2, 2))

    def forward(self, x):
        h = F.gelu(self.p0)
        unread = self.p0 + h @ self.p1
        with torch.no_grad():
            quiet = x.mean()
        return {"loss": h.pow(2).mean()}


def inputs():
    return (normal(2),)
""",
        "replicate",
        2,
    ),
    Mended(
        "a gradient that autograd gives as zeros without memory",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.p0 = nn.Parameter(normal(2, 2, 2))

    def forward(self):
        p0 = self.p0
        v1 = torch.sgn(p0)
        v4 = p0.pow(2).mean()
        return {"loss": v4, "v1": v1}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:683325"
devices 3
op %sgn: replicate 3
op %pow: single on 0
op %mean: single on 0
""",
        3,
        "all",
    ),
]
