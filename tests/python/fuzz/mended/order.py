"""Parts in turn, recompute, and blocks that run one after another."""

from __future__ import annotations

from .program import Mended

ORDER: list[Mended] = [
    Mended(
        "random parts in turn that run in another order than they are numbered in",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.b4 = nn.Parameter(normal(2, 2, 2))
        self.p7 = nn.Parameter(normal(2))
        self.m8 = noisy(nn.Dropout(0.4))

    def forward(self):
        b4 = self.b4
        p7 = self.p7
        m8 = self.m8
        v5 = F.layer_norm(b4, (2, ), p7, eps=0.1)
        v6 = m8(v5)
        v8 = v6.sin().sum()
        return {"loss": v8}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:649982"
devices 1
op %layer_norm: split a 2, split b 2 on 0 0 0 0
op %native_dropout: split b 2, split a 2 on 0 0 0 0
op %sin: single on 0
op %sum: single on 0
""",
        1,
    ),
    Mended(
        "a part that is given nothing by which it would be computed again, of one that reads what is",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(normal(2, 2))
        self.p3 = nn.Parameter(normal(2, 2))
        self.p5 = nn.Parameter(normal(2, 2))

    def forward(self, x0):
        p1 = self.p1
        p3 = self.p3
        p5 = self.p5
        v2 = (p5 * x0).sum() * 0.1
        v7 = torch.addmm(v2, p1, p3)
        v9 = v7.sin().sum()
        return {"loss": v9}


def inputs():
    return (normal(2, 2),)
""",
        """\
shardwright-plan 1
name "again"
devices 2
use "replicate"
op %mul: single on 0
op %sum: single on 0
op %mul_1: single on 0
op %addmm: split k 2 on 1 0
op %sin: single on 0
op %sum_1: single on 0
recompute %sum %mul_1
""",
        2,
    ),
    Mended(
        "a block without a backward that runs after the backwards of others",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(normal(2, 4))
        self.m2 = noisy(nn.BatchNorm1d(4, eps=0.1))

    def forward(self):
        p1 = self.p1
        m2 = self.m2
        v1 = checkpoint(m2, p1, use_reentrant=False)
        v4, v5, v6, v7 = v1.unbind(1)
        return {"loss": v4.mean()}


def inputs():
    return ()
""",
        "stages:2 x zb-v",
        2,
        batches=2,
    ),
]
