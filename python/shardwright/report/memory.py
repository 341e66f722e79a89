"""What ranks have in memory in a step, as the compiler counts it in the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._core import Compiled, Simulated

OPTIMIZER = "adamw"

# The status of a command: neither success, nor an error (1), nor a mistake in the arguments (2).
DOES_NOT_FIT = 3


def status_of(step: Simulated) -> int:
    """`DOES_NOT_FIT` where some rank has too little memory, on its device or on its host."""
    fits = all(needed <= there for needed, there in (*step.memory, *step.on_host))
    return 0 if fits else DOES_NOT_FIT


def memory_of(compiled: Compiled, optimizer: str = OPTIMIZER) -> dict[str, Any]:
    """Plain data, of the rank that has most."""
    ranks = compiled.memory(optimizer)
    rank = max(range(len(ranks)), key=lambda at: (ranks[at].total, -at))
    most = ranks[rank]
    return {
        "rank": rank,
        "total": most.total,
        "peak": most.peak,
        "most": most.most,
        "offloaded": most.offloaded,
        "at": most.at,
        "optimizer": optimizer,
        "ranks": [one.total for one in ranks],
    }


def lines_of_memory(memory: Mapping[str, Any], there: int | None = None) -> list[str]:
    """In how much memory a step fits, of what is there, what that is for, and where it is the most."""
    details = {"optimizer": f" ({memory['optimizer']})"}
    used = [f"{size_of(size)} {name}{details.get(name, '')}" for name, size in memory["peak"].items() if size]
    of_all = "" if there is None else f" of {size_of(there)}"
    fits = "" if there is None or memory["total"] <= there else ", and does not fit"
    needed = f"{size_of(memory['total'])}{of_all} on rank {memory['rank']}{fits}"
    lines = [f"a step needs {needed}: {', '.join(used)}"]
    if memory["offloaded"]:
        lines.append(f"  up to {size_of(memory['offloaded'])} more are on its host meanwhile")
    return lines + ([f"  that is in {memory['at']}"] if memory["at"] else [])


def size_of(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
