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
