"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`status` is `ok`, `warn` or `fail`; `fix` says what to do."""

    name: str
    status: str
    what: str
    fix: str = ""
