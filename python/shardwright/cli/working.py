"""A progress bar around one piece of work, where stderr is a terminal and it takes longer than a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..report.progress import Phases


@contextmanager
def working(title: str, phase: str) -> Iterator[Phases]:
    from ..report.progress import Progress, wanted

    with Progress(wanted(None)).phases(title) as phases:
        phases.begin(phase)
        yield phases
