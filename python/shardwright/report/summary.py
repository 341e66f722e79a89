"""The short summary of a compiled program: what is divided, what moves, what each rank holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .._core import Compiled, Plan
from .computed_work import lines_of_work, work_of
from .memory import OPTIMIZER, lines_of_memory, memory_of, size_of

# As many lines about operators as a person reads.
MOST_NOTES = 4


def summary_of(
    model: str,
    plan: Plan,
    compiled: Compiled,
    notes: Sequence[str] = (),
    optimizer: str = OPTIMIZER,
    chosen: str | None = None,
    compared: str | None = None,
) -> dict[str, Any]:
    """Plain data, kept with the program. Communications are those of the rank that has most. `notes` are
    those of capture, `chosen` is what is expected of a plan that was, and `compared` says what of graph and
    module was."""
    split, replicated, single = compiled.divided
    totals = [sum(found.values()) for found in compiled.bytes]
    most = totals.index(max(totals))
    counts, sizes = compiled.counts[most], compiled.bytes[most]
    return {
        "model": model,
        "plan": plan.name,
        "devices": plan.devices,
        "chosen": chosen,
        "compared": compared,
        "split": split,
        "replicated": replicated,
        "single": single,
        "without_rule": dict(Counter(text.split(" ", 1)[0] for text in compiled.unknown)),
        "communications": {kind: [counts[kind], sizes.get(kind, 0)] for kind in counts},
        "held": [min(compiled.held), max(compiled.held)],
        "trained": [min(compiled.trained), max(compiled.trained)],
        "memory": memory_of(compiled, optimizer),
        "work": work_of(plan) | _computed(compiled),
        "notes": [*notes, *plan.notes],
    }


def _computed(compiled: Compiled) -> dict[str, int]:
    """Of the rank that computes most, as the proof has counted it in the program."""
    rank, again = max(compiled.computed)
    return {"rank": rank, "again": again}


def lines_of(
    summary: Mapping[str, Any], how: str, where: str, seconds_of_comparison: float = 0.0
) -> list[str]:
    """The summary as a person reads it. `how` says what was done, `where` where the program is."""
    took = f" in {seconds_of_comparison:.1f} s" if seconds_of_comparison else ""
    devices = summary["devices"]
    lines = [
        f"shardwright: {summary['model']}, plan `{summary['plan']}`, {count_of(devices, 'device')}",
        f"  {how}",
        *([f"  compared with the module{took}: {summary['compared']}"] if summary["compared"] else []),
        *([f"  {summary['chosen']}"] if summary["chosen"] else []),
        f"  operators: {summary['split']} split, {summary['replicated']} replicated,"
        f" {summary['single']} on one device",
    ]
    if summary["without_rule"]:
        named = ", ".join(f"{count} x {target}" for target, count in summary["without_rule"].items())
        lines.append(f"  of these without a rule, and so never split: {named}")
    lines += [f"  {line}" for line in lines_of_work(summary["work"])]
    lines += notes_of(summary["notes"])
    lines.append(f"  a step communicates: {_communications(summary['communications'])}")
    lines.append(
        f"  a rank holds: {_range(summary['held'])} of parameters and buffers,"
        f" {_range(summary['trained'])} of gradients"
    )
    lines += [f"  {line}" for line in lines_of_memory(summary["memory"])]
    lines.append(f"  the program is {where}")
    return lines


def notes_of(notes: Sequence[str]) -> list[str]:
    """What the plan could not be kept to."""
    more = [f"  and {len(notes) - MOST_NOTES} more"] if len(notes) > MOST_NOTES else []
    return [f"  {note}" for note in notes[:MOST_NOTES]] + more


def seconds_of(phases: Mapping[str, float], total: float) -> str:
    """`compiled in 1.9 s: capture 1.2, check 0.4`, phases of no time left out."""
    shown = [f"{name} {seconds:.1f}" for name, seconds in phases.items() if seconds >= 0.05]
    return f"compiled in {total:.1f} s" + (f": {', '.join(shown)}" if shown else "")


def _communications(found: Mapping[str, Sequence[int]]) -> str:
    kinds: dict[str, list[int]] = {}
    for key, (count, size) in found.items():
        sums = kinds.setdefault(key.split()[1], [0, 0])
        sums[0] += count
        sums[1] += size
    return (
        ", ".join(f"{count} {kind} ({size_of(size)})" for kind, (count, size) in kinds.items()) or "nothing"
    )


def _range(sizes: Sequence[int]) -> str:
    low, high = map(size_of, sizes)
    return high if low == high else f"{low} to {high}"


def batches_of(count: int) -> str:
    return f"{count} micro-batches" if count > 1 else "one micro-batch"


def time_of(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def count_of(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
