"""What is the same on all devices, whole and in parts."""

from __future__ import annotations

from .program import Mended

CONSTANTS: list[Mended] = [
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
    Mended(
        "a constant that is divided over two factors of a dim",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(2, 5))

    def forward(self):
        p0 = self.p0
        v2 = p0.reshape(-1)
        v3 = torch.full((10,), 0.0, dtype=D)
        v4 = v3 - v2
        v5 = v4.pow(2).mean()
        return {"loss": v5}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:4"
devices 1
op %reshape: single on 0
op %full: split a.0 2, split a.1 2 on 0 0 0 0
op %sub: single on 0
op %pow: single on 0
op %mean: single on 0
""",
        1,
    ),
    Mended(
        "the largest of a constant that is split",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(4, 6))

    def forward(self):
        return {"loss": (torch.full((4, 6), 0.5, dtype=D).log_softmax(1) * self.p0).sum()}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "apart"
devices 2
op %full: split b 2
op %log_softmax: split b 2
op %mul: split b 2
op %sum: split b 2
""",
        2,
    ),
    Mended(
        "zeros for what a copy overwrites whole",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(2, 2))
        self.p1 = nn.Parameter(normal(2, 2))

    def forward(self):
        return {"loss": self.p0.clone().copy_(self.p1).pow(2).mean()}


def inputs():
    return ()
""",
        "replicate",
        2,
    ),
    Mended(
        "zeros for what a part that is all of it is written into",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.x1 = nn.Parameter(normal(2, 2))
        self.p2 = nn.Parameter(normal(1, 1))

    def forward(self):
        x = self.x1.clone()
        x[0:2] = self.p2
        return {"loss": x.mean()}


def inputs():
    return ()
""",
        "replicate",
        2,
    ),
    Mended(
        "parts of what is the same everywhere, of which those on a rank do not follow each other",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qv0 = nn.Parameter(normal(2, 4))

    def forward(self):
        v1 = torch.cat([self.qv0, self.qv0], 1)
        v5 = torch.ones((2, 8), dtype=D)
        return {"loss": F.kl_div(v1.log_softmax(-1), v5.softmax(-1), reduction="sum")}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "mine"
devices 2
op %cat: single on 0
op %ones: split a 2, split b.1 2 on 1 0 1 1
op %log_softmax: single on 0
op %softmax: split b.1 2, split a 2 on 0 0 0 0
op %kl_div: single on 0
""",
        2,
    ),
]
