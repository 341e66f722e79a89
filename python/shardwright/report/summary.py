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
# By how much more than its share a rank computes before that is told unasked.
UNEVEN = 1.5


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
    counted = summary_of_program(model, (plan.name, plan.devices), compiled, notes, optimizer, compared)
    return {
        **counted,
        "chosen": chosen,
        "split": split,
        "replicated": replicated,
        "single": single,
        "work": work_of(plan) | _computed(compiled),
        "plan_notes": list(plan.notes),
    }


def summary_of_program(
    model: str,
    plan: tuple[str, int],
    compiled: Compiled,
    notes: Sequence[str] = (),
    optimizer: str = OPTIMIZER,
    compared: str | None = None,
) -> dict[str, Any]:
    """The same of a program of which no plan is known but its name and how many devices it is for."""
    totals = [sum(sizes.values()) for sizes in compiled.bytes]
    most = totals.index(max(totals))
    counts, sizes = compiled.counts[most], compiled.bytes[most]
    return {
        "model": model,
        "plan": plan[0],
        "devices": plan[1],
        "chosen": None,
        "compared": compared,
        "split": None,
        "without_rule": dict(Counter(text.split(" ", 1)[0] for text in compiled.unknown)),
        "communications": {kind: [counts[kind], sizes.get(kind, 0)] for kind in counts},
        "held": [min(compiled.held), max(compiled.held)],
        "trained": [min(compiled.trained), max(compiled.trained)],
        "memory": memory_of(compiled, optimizer),
        "work": None,
        "notes": list(notes),
        "plan_notes": [],
    }


def _computed(compiled: Compiled) -> dict[str, int]:
    """Of the rank that computes most, as the proof has counted it in the program."""
    rank, again = max(compiled.computed)
    return {"rank": rank, "again": again}


def lines_of(
    summary: Mapping[str, Any],
    how: str,
    where: str,
    seconds_of_comparison: float = 0.0,
    *,
    memory: int | str | None = None,
    verbose: bool = False,
) -> list[str]:
    """The summary as a person reads it: plan, time, memory, and where the program is.

    `how` says what was done, `where` where the program is, `memory` what each rank has. With `verbose` it
    also has what the compiler counted.
    """
    devices = summary["devices"]
    held = summary["memory"]
    limit = "" if memory is None else f" of {size_of(memory) if isinstance(memory, int) else memory}: it fits"
    optimizer = "" if held["optimizer"] == "none" else f", with the state of {held['optimizer']}"
    lines = [
        f"shardwright: {summary['model']}, plan `{summary['plan']}`, {count_of(devices, 'device')}",
        f"  {how}; proved equal to the model",
        *([f"  {summary['chosen']}"] if summary["chosen"] else []),
        f"  memory: {size_of(held['total'])}{limit}, on rank {held['rank']}, which needs most{optimizer}",
        f"  communication in a step: {_communications(summary['communications'])}",
        *(f"  {line}" for line in _warnings(summary)),
        *notes_of(summary["notes"]),
    ]
    if verbose:
        took = f" in {seconds_of_comparison:.1f} s" if seconds_of_comparison else ""
        lines += [f"  {line}" for line in _counted(summary, took)]
    return [*lines, f"  the program is {where}"]


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    """What a person may want to change."""
    warnings = []
    if summary["without_rule"]:
        named = ", ".join(f"{count} x {target}" for target, count in summary["without_rule"].items())
        warnings.append(f"never split, for want of a rule: {named}")
    work = summary["work"]
    if work is not None and work["rank"] > UNEVEN * work["model"] / work["devices"]:
        warnings += lines_of_work(work)[:1]
    return warnings


def _counted(summary: Mapping[str, Any], took: str) -> list[str]:
    """By the compiler."""
    lines = [f"compared with the module{took}: {summary['compared']}"] if summary["compared"] else []
    if summary["split"] is not None:
        lines.append(
            f"operators: {summary['split']} split, {summary['replicated']} replicated,"
            f" {summary['single']} on one device"
        )
    lines += lines_of_work(summary["work"]) if summary["work"] else []
    lines += [line.strip() for line in notes_of(summary["plan_notes"])]
    lines.append(
        f"a rank holds: {_range(summary['held'])} of parameters and buffers,"
        f" {_range(summary['trained'])} of gradients"
    )
    return lines + lines_of_memory(summary["memory"])


def notes_of(notes: Sequence[str]) -> list[str]:
    """What capture has to say, or what the plan could not be kept to."""
    more = [f"  and {len(notes) - MOST_NOTES} more"] if len(notes) > MOST_NOTES else []
    return [f"  {note}" for note in notes[:MOST_NOTES]] + more


def notes_of_plan(notes: Sequence[str], verbose: bool) -> list[str]:
    """Of a plan that was carried over to another call of the model."""
    if not notes or verbose:
        return notes_of(notes)
    return [
        f"  of {count_of(len(notes), 'operator')} the plan does not say how to split them here; results are"
        " the same, and nothing has to be done (SHARDWRIGHT_VERBOSE=1 names them)"
    ]


def seconds_of(phases: Mapping[str, float], total: float, done: str = "compiled") -> str:
    """`compiled in 1.9 s: capture 1.2, check 0.4`, phases of no time left out."""
    shown = [f"{name} {seconds:.1f}" for name, seconds in phases.items() if seconds >= 0.05]
    return f"{done} in {total:.1f} s" + (f": {', '.join(shown)}" if shown else "")


def _communications(calls: Mapping[str, Sequence[int]]) -> str:
    kinds: dict[str, list[int]] = {}
    for key, (count, size) in calls.items():
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


def set_of(first: int, last: int) -> str:
    """Devices or ranks in a row as plans write them: `0..4` are four."""
    return str(first) if first == last else f"{first}..{last + 1}"


def time_of(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def count_of(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
