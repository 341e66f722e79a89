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
        r"(?s)compile SW0516: .*SW0504: forward code reads the gradient of %cross_entropy_loss\.0",
        r"F\.cross_entropy",
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
    ),
]


def is_known(finding: Finding) -> str | None:
    """The name of the entry that a finding belongs to."""
    text = f"{finding.phase} {finding.kind}: {finding.message}"
    for known in KNOWN:
        if re.search(known.key, text) and re.search(known.source, finding.program.source()):
            return known.example.name
    return None
