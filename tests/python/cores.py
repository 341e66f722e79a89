"""Ranks that are threads of one process take turns at Python's lock: more cores than one only make them wait.

On several cores each turn wakes a core up, which takes longer than what a tiny model computes in it.
"""

from __future__ import annotations

import os


def keep_to_one(number: int) -> None:
    """The core of the worker of this number; the processes that it starts share it."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
