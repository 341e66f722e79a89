"""One program under one plan, beside the single device.

What goes wrong is a `Finding` with the phase in which it did: capture, plan, compile, run, or compare.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import equality
from equality import Held, Result
from shardwright import Graph, Plan
from shardwright._core import Compiled
from shardwright.capture import Captured, capture
from shardwright.errors import CaptureError, PlanError, ShardwrightError
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.runtime.optimizers.optimizer import optimizer
from shardwright.runtime.programs.parts import OutputPart
from shardwright.start.compiling import compile_plan, sources

from . import sharing, steps
from .noise import Noise
from .programs import Program, build

SEED = 11
FINE, COARSE = 1e-9, 3e-3


@dataclass(frozen=True)
class Way:
    """How a program is parallelized: `plan` is a name, `random:SEED`, `shares:SEED`, or a plan's text."""

    plan: str
    devices: int
    outputs: str = "loss"
    inputs: str = "global"
    batches: int = 0
    """Micro-batches of a step; 0 is the model called, its loss differentiated by the caller."""


@dataclass
class Finding:
    phase: str
    kind: str
    """The code of an error of ours, or the class of another one."""
    message: str
    program: Program
    way: Way | None = None
    plan_text: str = ""

    @property
    def key(self) -> str:
        """Alike findings have one key."""
        line = self.message.strip().splitlines()[0] if self.message.strip() else ""
        return f"{self.phase} {self.kind}: {re.sub(r'[%`]?[a-z_]*[0-9][^ ]*', '#', line)[:100]}"

    @property
    def coarse_key(self) -> str:
        return f"{self.phase} {self.kind}"


class Refused(Exception):
    """Capture or a named plan refuses the program by a code of its own."""

    def __init__(self, code: str, message: str):
        super().__init__(f"{code}: {message}")
        self.code = code


class Unstable(Exception):
    """The single device alone gives another result when it rounds otherwise, or none."""


@dataclass
class Subject:
    """A program that is built and captured."""

    program: Program
    module: nn.Module
    args: tuple[Tensor, ...]
    captured: Captured
    graph: Graph
    expected: dict[str, Result] = field(default_factory=dict)

    @cached_property
    def steps(self) -> int:
        return 2 if any(True for _ in self.module.buffers()) or len(self.program.steps) % 3 == 0 else 1

    def reference(self, outputs: str, batches: int = 0) -> Result:
        key = f"{outputs} {batches}"
        if key not in self.expected:
            self.expected[key] = self.alone(outputs, batches)
        return self.expected[key]

    def alone(self, outputs: str, batches: int, noise: float = 0.0) -> Result:
        if not batches:
            return single_device(self, outputs, noise)
        return steps.single_device(self.module, steps.batches_of(self.args, batches), self.steps, noise)


def prepare(program: Program) -> Subject:
    """Builds and captures; raises `Refused`, `Unstable`, or a `Found`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, args = build(program.source())
        try:
            _require_finite(module, args)
        except Exception as error:
            raise Unstable(str(error)) from None
        try:
            captured = capture(module, args)
            graph = Graph(captured.graph_text)
        except CaptureError as error:
            raise Refused(error.code, error.what) from None
        except Exception as error:
            raise Found(_finding("capture", error, program)) from error
        subject = Subject(program, module, args, captured, graph)
        for asked in ("loss", "all"):
            for _, tensors in subject.reference(asked).kinds():
                if any(t.is_floating_point() and not t.isfinite().all() for t in tensors.values()):
                    raise Unstable("a gradient is not finite")
        return subject


class Found(Exception):
    def __init__(self, finding: Finding):
        super().__init__(finding.message)
        self.finding = finding


def compare(subject: Subject, way: Way) -> Compiled:
    """Runs a pair; raises `Refused` where a named plan does not fit, `Found` where something is wrong."""
    plan, phase = None, "plan"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = plan_of(subject.graph, way)
            phase = "compile"
            bundle, compiled = compile_plan(subject.captured, plan, inputs=way.inputs, outputs=way.outputs)
            phase = "run"
            actual = on_ranks(subject, bundle, way)
        phase = "compare"
        expected = subject.reference(way.outputs, way.batches)
        wrong = differences(actual, expected, subject.program.coarse, way.outputs)
    except Exception as error:
        if isinstance(error, PlanError) and phase == "plan" and not way.plan.startswith("random"):
            raise Refused(error.code, error.what) from None
        if phase in ("run", "compare") and not _runs_alone(subject, way):
            raise Unstable("the single device fails, too") from None
        finding = _finding(phase, error, subject.program, way, plan)
        raise Found(finding) from error
    except BaseException as error:  # a panic of Rust is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise Found(_finding(phase, error, subject.program, way, plan)) from None
    if wrong:
        if sensitive(subject, way.outputs, way.batches):
            raise Unstable("rounding otherwise changes the result")
        text = plan.text if plan else ""
        kind = wrong[0].split()[0]
        raise Found(Finding("compare", kind, "\n".join(wrong[:6]), subject.program, way, text))
    return compiled


def _runs_alone(subject: Subject, way: Way) -> bool:
    try:
        subject.reference(way.outputs, way.batches)
    except Exception:
        return False
    return True


def plan_of(graph: Graph, way: Way) -> Plan:
    if way.plan.startswith("shardwright-plan"):
        return Plan.parse(graph, way.plan)
    if way.plan.startswith("random:"):
        return Plan.random(graph, way.devices, int(way.plan.removeprefix("random:")))
    if way.plan.startswith("shares:"):
        return sharing.plan(graph, way.devices, int(way.plan.removeprefix("shares:")))
    return Plan.named(graph, way.plan, way.devices)


def _finding(
    phase: str, error: BaseException, program: Program, way: Way | None = None, plan: Plan | None = None
) -> Finding:
    kind = error.code if isinstance(error, ShardwrightError) else type(error).__name__
    if isinstance(error, AssertionError) and phase == "run":
        kind = "copies"
    return Finding(phase, kind, str(error), program, way, plan.text if plan else "")


# ---- one step on one device, and on ranks ------------------------------------------------------


def single_device(subject: Subject, outputs: str, noise: float = 0.0) -> Result:
    """The module itself: SGD; gradients are those of the first step."""
    module, args = copy.deepcopy(subject.module), equality.fresh(subject.args)
    result = Result()
    sgd = torch.optim.SGD(module.parameters(), lr=0.05) if list(module.parameters()) else None
    torch.manual_seed(SEED)
    for step in range(subject.steps):
        for x in args:
            x.grad = None
        if sgd:
            sgd.zero_grad()
        with Noise(noise):
            leaves = pytree.tree_leaves(module(*args))
            asked = _kept(leaves, outputs)
            total(asked, subject.program).backward()
        result.losses |= _named(asked, step)
        if step == 0:
            result.gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
            result.gradients |= {name: grad.clone() for name, grad in equality.of_inputs(args).items()}
        if sgd:
            sgd.step()
    result.parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    result.buffers = {name: b.clone() for name, b in module.named_buffers()}
    return result


def on_ranks(subject: Subject, bundle: Any, way: Way) -> Result:
    if way.batches:
        batches = steps.batches_of(subject.args, way.batches)
        return steps.on_ranks(subject.module, bundle, batches, subject.steps, subject.program.coarse)
    program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
    values = sources(subject.module, bundle.captured)

    def rank(_: int, comm: Any) -> tuple[list[list[Tensor]], list[Held], list[dict[str, Tensor]]]:
        generator = torch.Generator()
        generator.manual_seed(SEED)
        model = ParallelModule(
            program,
            comm,
            values,
            bundle.captured,
            inputs=way.inputs,
            randomness="single-device",
            generator=generator,
        )
        return _train(model, subject)

    ranks = run_local(bundle.devices, rank)
    result = equality.assemble([(losses, held) for losses, held, _ in ranks], coarse=subject.program.coarse)
    for _, _, outputs in ranks:
        for named in outputs:
            for name, value in named.items():
                known = result.losses.setdefault(name, value)
                assert _close(known, value, subject.program.coarse), f"ranks disagree about result {name}"
    return result


def _train(
    model: ParallelModule, subject: Subject
) -> tuple[list[list[Tensor]], list[Held], list[dict[str, Tensor]]]:
    parts = [_part(model, at) if model.inputs == "local" else None for at in range(len(subject.args))]
    args = _given(model, subject.args, parts)
    # All ranks have one, also those that hold no parameter.
    trains = any(True for _ in subject.module.parameters())
    sgd = optimizer(model, torch.optim.SGD, lr=0.05) if trains else None
    outputs: list[dict[str, Tensor]] = []
    gradients: dict[int, Tensor | None] = {}
    inputs: dict[str, Tensor] = {}
    for step in range(subject.steps):
        for x in args:
            x.grad = None
        if sgd:
            sgd.zero_grad()
        leaves = pytree.tree_leaves(model(*args))
        asked = [leaf if isinstance(leaf, Tensor) else None for leaf in leaves]
        total(asked, subject.program).backward()
        outputs.append(_named(asked, step))
        if step == 0:
            for at, shard in enumerate(model.shards.held):
                grad = shard.data.grad if isinstance(shard.data, nn.Parameter) else None
                gradients[at] = None if grad is None else grad.clone()
            inputs = {name: grad.clone() for name, grad in equality.of_inputs(args).items()}
        if sgd:
            sgd.step()
    held = equality.held_by(model, gradients)
    for name, grad in inputs.items():
        part = parts[int(name.split()[1])]
        if model.inputs == "local" and part is None:
            continue
        region = part.region if part else [(0, size) for size in grad.shape]
        held.append(
            Held(name, "input", part.factors if part else [[size] for size in grad.shape], region, grad, grad)
        )
    return [], held, outputs


def _part(model: ParallelModule, position: int) -> OutputPart | None:
    tensors = [model.program.tensors[number] for number in model.worker.role.inputs]
    for tensor, region in zip(tensors, model.worker.table.inputs, strict=True):
        if tensor.position == position:
            return OutputPart(tensor.factors, region)
    return None


def _given(
    model: ParallelModule, args: Sequence[Tensor], parts: Sequence[OutputPart | None]
) -> tuple[Tensor, ...]:
    if model.inputs == "global":
        return equality.fresh(args)
    cuts = [
        (x if part is None else part.of(x)).detach().clone().requires_grad_(x.requires_grad)
        for x, part in zip(args, parts, strict=True)
    ]
    return tuple(cuts)


def _kept(leaves: Sequence[Any], outputs: str) -> list[Tensor | None]:
    """What leaves a parallel model that was asked for these outputs."""
    scalar = [isinstance(x, Tensor) and x.dim() == 0 and x.is_floating_point() for x in leaves]
    return [
        x if isinstance(x, Tensor) and (outputs == "all" or scalar[at]) else None
        for at, x in enumerate(leaves)
    ]


def total(outputs: Sequence[Tensor | None], program: Program) -> Tensor:
    """The loss, other scalars with weights, and other results if a part of the loss is outside."""
    terms = []
    for at, x in enumerate(outputs):
        if x is None or not x.requires_grad or not (x.dim() == 0 or program.outside):
            continue
        weights = torch.cos(torch.arange(x.numel(), dtype=torch.float64)).reshape(x.shape) if x.dim() else 1.0
        terms.append((x.double() * weights).sum() * (1 + 0.5 * at))
    return torch.stack(terms).sum()


def _named(outputs: Sequence[Tensor | None], step: int) -> dict[str, Tensor]:
    return {f"{step}.{at}": x.detach().clone() for at, x in enumerate(outputs) if x is not None}


# ---- equal ------------------------------------------------------------------------------------


def differences(ours: Result, theirs: Result, coarse: bool, outputs: str) -> list[str]:
    """What is not equal, as the project means it; float32 inside of a program shows in all that follows."""
    differing = []
    for kind, tensors in ours.kinds():
        others: Mapping[str, Tensor] = dict(theirs.kinds())[kind]
        for name in tensors.keys() & others.keys():
            a, b = tensors[name], others[name]
            if kind == "loss" and (a.shape != b.shape or a.dtype != b.dtype):
                differing.append(f"result {name}: {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}")
    for name in ours.gradients.keys() - theirs.gradients.keys():
        # A loss that starts at some results gives the others zeros; what made an input adds a zero.
        if (outputs == "all" or name.startswith("input ")) and not ours.gradients[name].any():
            del ours.gradients[name]
    return differing or equality.differences(ours, theirs, COARSE if coarse else FINE)


def sensitive(subject: Subject, outputs: str, batches: int = 0) -> bool:
    expected = subject.reference(outputs, batches)
    limit = COARSE if subject.program.coarse else FINE
    noise = 1e-7 if subject.program.coarse else 1e-14
    for seed in range(3):
        torch.manual_seed(seed)
        try:
            actual = subject.alone(outputs, batches, noise)
        except Exception:
            return True
        if equality.differences(actual, expected, limit / 2):
            return True
    return False


def _close(a: Tensor, b: Tensor, coarse: bool) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    return a.shape == b.shape and torch.allclose(a, b, rtol=COARSE if coarse else 1e-10, atol=1e-14)


def _require_finite(module: nn.Module, args: Sequence[Tensor]) -> None:
    leaves = pytree.tree_leaves(copy.deepcopy(module)(*equality.fresh(args)))
    for x in leaves:
        if isinstance(x, Tensor) and x.is_floating_point() and not x.isfinite().all():
            raise ValueError("a result is not finite")
