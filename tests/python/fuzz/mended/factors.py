"""Dims that are several factors, and parts that lie anywhere."""

from __future__ import annotations

from .program import Mended

FACTORS: list[Mended] = [
    Mended(
        "copies that are divided over a factor of their own",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(2, 3))

    def forward(self):
        p0 = self.p0
        v0 = p0.repeat(8, 1)
        v1 = v0.reshape(2, 2, 4, 3)
        v2 = v1.tanh()
        return {"loss": v2.sum()}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:335"
devices 2
op %repeat: split a_copy.1 2 on 1 0
op %reshape: split c.1 2 on 1 0
op %tanh: split a 2 on 1 0
op %sum: split d 2 on 1 0
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
        "parts of an expanded parameter of other lengths, some of which lie anywhere",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(normal(2))

    def forward(self):
        p1 = self.p1
        v0 = p1.expand(4, 2).sum()
        return {"loss": v0 * 1.0}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "anywhere"
devices 3
op %expand: split a 3 on 0 0 0
op %sum: split a 3 on 0 2 0
op %mul: single on 0
""",
        3,
    ),
    Mended(
        "channels of a norm that do not follow each other",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.b2 = nn.Parameter(normal(3, 3))
        self.m3 = noisy(nn.BatchNorm1d(6, eps=0.1))
        self.x5 = nn.Parameter(normal(3, 6))

    def forward(self):
        v5 = self.b2.repeat_interleave(2, -1)
        v6 = self.m3(self.m3(v5) * 2)
        return {"loss": (v6 * self.x5).sum()}


def inputs():
    return ()
""",
        "random:3",
        2,
    ),
]
