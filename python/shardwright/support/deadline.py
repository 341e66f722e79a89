"""How long a search for a plan may take."""

from __future__ import annotations

import math
import os

from ..errors import ClusterError

# Seconds, if nobody says more.
DEADLINE = 60.0


def default_deadline() -> float | None:
    """Seconds after which a search takes the best plan so far; none where it may take as long as it does."""
    said = os.environ.get("SHARDWRIGHT_DEADLINE") or str(DEADLINE)
    try:
        return deadline_of(float(said))
    except ValueError:
        raise ClusterError(
            "SW0935",
            f"SHARDWRIGHT_DEADLINE={said!r} is no number of seconds",
            why="it says how long a search for a plan may take",
            fix="set it to a number such as 120, or to inf for as long as it takes",
        ) from None


def deadline_of(seconds: float | None) -> float | None:
    """Infinitely many are no deadline."""
    return None if seconds == math.inf else seconds
