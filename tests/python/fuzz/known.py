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


KNOWN: list[Known] = []


def is_known(finding: Finding) -> str | None:
    """The name of the entry that a finding belongs to."""
    text = f"{finding.phase} {finding.kind}: {finding.message}"
    for known in KNOWN:
        if re.search(known.key, text) and re.search(known.source, finding.program.source()):
            return known.example.name
    return None
