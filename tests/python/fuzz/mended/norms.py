"""Norms of few values, and their running statistics."""

from __future__ import annotations

from .program import Mended

NORMS: list[Mended] = [
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
        "a batch norm that is used twice, the first time over a split batch",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(normal(2, 2, 1))
        self.m2 = noisy(nn.BatchNorm1d(2, eps=0.1))

    def forward(self):
        p1 = self.p1
        m2 = self.m2
        v1 = m2(m2(p1) * 2)
        v3 = v1.pow(2).mean()
        return {"loss": v3}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:679899"
devices 2
op %add: single on 0
op %native_batch_norm_legit_functional_0: split b 2, split a 2 on 0 0 1 0
op %mul: single on 0
op %add_1: single on 0
op %native_batch_norm_legit_functional_1_0: single on 0
op %pow: single on 0
op %mean: single on 0
""",
        2,
    ),
    Mended(
        "a batch norm that averages all batches alike",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=None).double()

    def forward(self, x):
        return {"loss": self.norm(x).sin().sum()}


def inputs():
    return (normal(4, 3).requires_grad_(),)
""",
        "data",
        2,
    ),
    Mended(
        "running statistics of norms that nothing else reads",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Parameter(normal(4, 2, 3))
        self.norm = nn.BatchNorm1d(2).double()
        self.other = nn.InstanceNorm1d(2, track_running_stats=True).double()

    def forward(self):
        unread = self.norm(self.p0).relu() + self.other(self.p0)
        return {"loss": self.p0.sin().sum()}


def inputs():
    return ()
""",
        "replicate",
        2,
    ),
]
