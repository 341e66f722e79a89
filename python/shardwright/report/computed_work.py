"""What the ranks of a plan compute, and what several of them compute alike, with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._core import Plan

# What is repeated is told from this share of a rank's operations on, in so many lines.
SMALLEST_SHARE = 0.01
MOST_LINES = 3


def work_of(plan: Plan) -> dict[str, Any]:
    """Plain data: operations of a step in products, of the model and of the rank that computes most; and
    what ranks repeat, the most first."""
    model, ranks, again, repeated = plan.work
    modules: dict[str, dict[str, float]] = {}
    for module, operations, reason in repeated:
        alike = modules.setdefault(reason, {})
        name = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module)
        alike[name] = alike.get(name, 0.0) + operations
    units: list[dict[str, Any]] = [
        {"modules": _where(alike), "operations": sum(alike.values()), "reason": reason}
        for reason, alike in modules.items()
    ]
    units.sort(key=lambda one: -one["operations"])
    most = max(range(len(ranks)), key=lambda rank: ranks[rank])
    return {
        "model": model,
        "rank": ranks[most],
        "again": again[most],
        "devices": plan.devices,
        "repeated": units,
    }


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.2g}%"


def lines_of_work(work: Mapping[str, Any]) -> list[str]:
    """Nothing where nothing that counts is repeated, or computed again."""
    large = [one for one in work["repeated"] if one["operations"] >= SMALLEST_SHARE * work["rank"]]
    if not large and not work["again"]:
        return []
    share, even = work["rank"] / work["model"], 1 / work["devices"]
    lines = [
        f"a rank computes {operations_of(work['rank'])} of {operations_of(work['model'])} a step:"
        f" {_percent(share)}, an even share is {_percent(even)}"
    ]
    if work["again"]:
        lines.append(f"of that {operations_of(work['again'])} recomputed for backward")
    for one in large[:MOST_LINES]:
        extra = f"{operations_of(one['operations'])} more than a share"
        lines.append(f"replicated: {one['modules']}, {extra}; {one['reason']}")
    if len(large) > MOST_LINES:
        lines.append(f"and {len(large) - MOST_LINES} more")
    return lines


def operations_of(count: float) -> str:
    for unit in ("", "K", "M", "G", "T"):
        if count < 1000:
            return f"{count:.0f} FLOP" if not unit else f"{count:.1f} {unit}FLOP"
        count /= 1000
    return f"{count:.1f} PFLOP"


def _where(alike: Mapping[str, float]) -> str:
    """The module that has them all, or those that have most."""
    common = _common([name.split(".") for name in alike])
    if len(common) > 1 or len(alike) == 1:
        return ".".join(common)
    most = sorted(alike, key=lambda name: -alike[name])
    return ", ".join(most[:MOST_LINES]) + (" and others" if len(most) > MOST_LINES else "")


def _common(paths: Sequence[Sequence[str]]) -> list[str]:
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return common
