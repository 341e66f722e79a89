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
        "gradient: other names",
        "hinge_embedding_loss",
        Mended(
            "zeros for a parameter that has no gradient: only an operand without gradients reads it",
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
            """\
shardwright-plan 1
name "apart"
devices 2
op "*": single on 0
op %hinge_embedding_loss: replicate 2
""",
            2,
        ),
    ),
    Known(
        "gradient: other names",
        r"copy_\(",
        Mended(
            "no gradient instead of zeros for what a copy overwrites whole",
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
    ),
]


def is_known(finding: Finding) -> str | None:
    """The name of the entry that a finding belongs to."""
    text = f"{finding.phase} {finding.kind}: {finding.message}"
    for known in KNOWN:
        if re.search(known.key, text) and re.search(known.source, finding.program.source()):
            return known.example.name
    return None
