"""Makes a finding small: fewer steps, smaller sizes, fewer ranks, a plan that splits less.

Whatever still goes wrong in the same phase with the same code is taken for the same.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .pairs import Finding, Found, Refused, Subject, Unstable, Way, compare, prepare
from .programs import HEADER, READ, Leaf, Program

SEEDS = 24
"""Random plans that are tried of a smaller program, whose operators have other names."""


def shrunk(finding: Finding, seconds: float = 60.0) -> Finding:
    """A smaller finding; the same if there is none."""
    end = time.monotonic() + seconds
    best = finding
    improved = True
    while improved and time.monotonic() < end:
        improved = False
        for program in _smaller(best.program):
            if time.monotonic() > end:
                break
            smaller = _still(program, best)
            if smaller is not None:
                best, improved = smaller, True
                break
    return _with_smaller_plan(best, end + seconds / 2)


# ---- does it still go wrong? ---------------------------------------------------------------------


def _still(program: Program, finding: Finding) -> Finding | None:
    try:
        subject = prepare(program)
    except Found as failure:
        return failure.finding if failure.finding.coarse_key == finding.coarse_key else None
    except Exception:
        return None
    if finding.way is None:
        return None
    return next(
        (failure for way in _ways(finding, subject) if (failure := _fails(subject, way, finding))), None
    )


def _fails(subject: Subject, way: Way, finding: Finding) -> Finding | None:
    try:
        compare(subject, way)
    except Found as failure:
        return failure.finding if failure.finding.coarse_key == finding.coarse_key else None
    except (Refused, Unstable):
        pass
    return None


def _ways(finding: Finding, subject: Subject) -> Iterator[Way]:
    way = finding.way
    assert way is not None
    if not way.plan.startswith(("random", "shardwright")):
        yield way
        if way.inputs == "local":
            yield replace(way, inputs="global")
        return
    yield replace(way, plan=_fitting(finding.plan_text, subject))
    plain = replace(way, inputs="global")
    for seed in range(SEEDS):
        yield replace(plain, plan=f"random:{seed}", devices=2 if seed % 2 else way.devices)


def _fitting(text: str, subject: Subject) -> str:
    """The lines of a plan about operators that are still there."""
    names = {f"%{op.name.lstrip('%')}" for op in subject.graph.operators}
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith("op ") or line.split()[1].rstrip(":") in names
    ]
    return "\n".join(lines) + "\n"


# ---- smaller programs ----------------------------------------------------------------------------


def _smaller(program: Program) -> Iterator[Program]:
    live = program.without_dead()
    if len(live.steps) < len(program.steps):
        yield live
    for at in range(len(program.losses)):
        if len(program.losses) > 1:
            yield replace(program, losses=program.losses[:at] + program.losses[at + 1 :]).pruned()
    for at in range(len(program.results)):
        yield replace(program, results=program.results[:at] + program.results[at + 1 :]).pruned()
    if program.outside:
        yield replace(program, outside=False)
    values = _values(program)
    for at in reversed(range(len(program.steps))):
        yield from _without_step(program, at, values)
    yield from _simpler_leaves(program, values)
    yield from _smaller_sizes(program)


def _without_step(program: Program, at: int, values: dict[str, Any]) -> Iterator[Program]:
    """A step's results become what it reads, or new parameters."""
    step = program.steps[at]
    rest = program.steps[:at] + program.steps[at + 1 :]
    if not step.targets:
        yield replace(program, steps=rest).pruned()
        return
    if any(target in program.losses for target in step.targets):
        return
    for name in dict.fromkeys(step.reads):
        if _alike(values.get(name), values.get(step.targets[0])) and len(step.targets) == 1:
            yield _renamed(replace(program, steps=rest), {step.targets[0]: name}).pruned()
    leaves = [_leaf_like(f"q{target}", values.get(target)) for target in step.targets]
    if all(leaves) and not all(values[name] is None for name in step.targets):
        names = {target: f"q{target}" for target in step.targets}
        bigger = replace(program, steps=rest, leaves=(*program.leaves, *(x for x in leaves if x)))
        yield _renamed(bigger, names).pruned()


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype


def _leaf_like(name: str, value: Any) -> Leaf | None:
    if not isinstance(value, Tensor):
        return None
    shape = ", ".join(map(str, value.shape))
    if value.dtype == torch.float64:
        return Leaf(name, "param", f"normal({shape})")
    if value.dtype == torch.bool:
        return Leaf(name, "input", f"torch.rand({shape or '()'}) < 0.6", False)
    if value.dtype == torch.int64:
        high = int(value.max()) + 1 if value.numel() else 1
        return Leaf(
            name, "input", f"torch.randint({max(high, 1)}, ({shape}{',' * (value.dim() == 1)}))", False
        )
    return None


def _renamed(program: Program, names: dict[str, str]) -> Program:
    def text(line: str) -> str:
        return READ.sub(lambda m: "{" + names.get(m[1], m[1]) + "}", line)

    steps = tuple(replace(step, text=text(step.text)) for step in program.steps)
    results = tuple(name for name in program.results if name not in names)
    return replace(program, steps=steps, results=results)


def _simpler_leaves(program: Program, values: dict[str, Any]) -> Iterator[Program]:
    for at, leaf in enumerate(program.leaves):
        others = []
        if leaf.kind == "tied" and isinstance(values.get(leaf.name), Tensor):
            others.append(_leaf_like(leaf.name, values[leaf.name]))
        if (
            leaf.kind in ("input", "buffer")
            and getattr(values.get(leaf.name), "dtype", None) == torch.float64
        ):
            others.append(Leaf(leaf.name, "param", leaf.text))
        if leaf.kind == "input" and leaf.grad:
            others.append(replace(leaf, grad=False))
        if leaf.kind == "param" and not leaf.grad:
            others.append(replace(leaf, grad=True))
        for other in others:
            if other is not None:
                yield replace(program, leaves=(*program.leaves[:at], other, *program.leaves[at + 1 :]))


def _smaller_sizes(program: Program) -> Iterator[Program]:
    """One number, wherever it stands, becomes a smaller one."""
    texts = [leaf.text for leaf in program.leaves] + [step.text for step in program.steps]
    sizes = sorted(
        {int(n) for text in texts for n in re.findall(r"(?<![\w.])\d+(?![\w.])", text)}, reverse=True
    )
    for size in sizes:
        for smaller in range(2, size):
            yield _resized(program, size, smaller)


def _resized(program: Program, size: int, smaller: int) -> Program:
    pattern = re.compile(rf"(?<![\w.]){size}(?![\w.])")

    def text(line: str) -> str:
        return pattern.sub(str(smaller), line)

    leaves = tuple(
        replace(leaf, text=leaf.text if leaf.kind == "tied" else text(leaf.text)) for leaf in program.leaves
    )
    return replace(program, leaves=leaves, steps=tuple(replace(s, text=text(s.text)) for s in program.steps))


def _values(program: Program) -> dict[str, Any]:
    """All values of one forward."""
    scope: dict[str, Any] = {}
    exec(HEADER, scope)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for leaf in program.leaves:
                made = scope[leaf.text] if leaf.kind == "tied" else eval(leaf.text, scope)
                scope[leaf.name] = made.requires_grad_() if leaf.kind == "param" and leaf.grad else made
            for step in program.steps:
                text = READ.sub(r"\1", step.text)
                exec(f"{', '.join(step.targets)} = {text}" if step.targets else text, scope)
    except Exception:
        pass
    return scope


# ---- smaller plans -------------------------------------------------------------------------------


def _with_smaller_plan(finding: Finding, end: float) -> Finding:
    """Fewer operators are split; the plan becomes text."""
    if finding.way is None or not finding.plan_text:
        return finding
    try:
        subject = prepare(finding.program)
    except Exception:
        return finding
    best = finding
    for line in [line for line in finding.plan_text.splitlines() if line.startswith("op ")]:
        for instead in _simpler(line, finding.way.devices):
            text = best.plan_text.replace(line, instead)
            if time.monotonic() > end:
                return best
            smaller = _fails_under(subject, replace(finding.way, plan=text), finding)
            if smaller is not None:
                best = smaller
                break
    return best


def _fails_under(subject: Subject, way: Way, finding: Finding) -> Finding | None:
    try:
        failing = _fails(subject, way, finding)
    except Exception:
        return None
    return failing and replace(failing, plan_text=way.plan)


def _simpler(line: str, devices: int) -> Iterator[str]:
    """Of one operator: not split, copied, or of splits in several ways one."""
    head, decision = line.split(": ", 1)
    yield f"{head}: single on 0"
    yield f"{head}: replicate {devices}"
    splits = re.split(r" on |  #", decision)[0].split(", ")
    if len(splits) > 1:
        yield from (f"{head}: {split}" for split in splits)


def snippet(finding: Finding, header: bool = False) -> str:
    """The finding as text: what went wrong, the model and the plan; with the header, a file."""
    way = finding.way
    lines = [f"# {line}" for line in f"{finding.phase} {finding.kind}: {finding.message}".splitlines()[:12]]
    lines += [f"# seed {finding.program.seed}", *([HEADER.rstrip(), "", ""] if header else [])]
    lines.append(finding.program.source())
    if way is not None:
        plan = finding.plan_text or way.plan
        lines += [
            f'PLAN = """{plan}"""',
            f"DEVICES = {way.devices}",
            f'OPTIONS = {{"outputs": "{way.outputs}", "inputs": "{way.inputs}"}}',
        ]
    return "\n".join(lines) + "\n"
