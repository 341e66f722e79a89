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
    batches: int = 0
    """Micro-batches of a step."""


MENDED: list[Mended] = [
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
