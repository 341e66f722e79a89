"""What is known to go wrong, each with an example. The list is to be empty."""

from __future__ import annotations

import re
from typing import NamedTuple

from .mended import Mended
from .pairs import Finding


class Known(NamedTuple):
    key: str
    """Fits the phase, the code and the message of a finding."""
    source: str
    """Fits the text of its model."""
    example: Mended


KNOWN: list[Known] = [
    Known(
        "SW0504: .*cannot be told",
        "expand",
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
    ),
    Known(
        "TypeError: only integer|AttributeError: 'list'",
        "torch.gradient",
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
    ),
    Known(
        "SW0513",
        "copy_",
        Mended(
            "a buffer that takes a value of its own shape",
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
    ),
]


def is_known(finding: Finding) -> str | None:
    """The name of the entry that a finding belongs to."""
    text = f"{finding.phase} {finding.kind}: {finding.message}"
    for known in KNOWN:
        if re.search(known.key, text) and re.search(known.source, finding.program.source()):
            return known.example.name
    return None
