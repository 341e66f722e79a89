"""The same on four ranks."""

from __future__ import annotations

from predicted import table_of
from tables import Table


def bench(quick: bool) -> Table:
    return table_of(4, quick)
