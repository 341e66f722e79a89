"""Steps that follow each other without a pause: what is under way at the end of one goes on in the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from torch import Tensor

from ...errors import RuntimeFault
from ..programs.program import Program
from ..shards.shards import Leaves
from ..shards.versions import Versions
from .outside import require_one_loss
from .run import Issued, Run, no_numbers, without_backward
from .steps import Step
from .timetable import Task, steady_tasks

# Messages know so many micro-batches apart.
NUMBERS = 1 << 16


@dataclass
class UnderWay:
    """A step that has begun, over `number` batches."""

    step: Step
    scale: float
    number: int
    # What its micro-batches read, and where their gradients add up.
    leaves: Leaves
    arrived: dict[int, Tensor] = field(default_factory=dict)


class Steady:
    """Of one model on one rank."""

    def __init__(self) -> None:
        self._before: UnderWay | None = None
        self._versions: Versions | None = None
        # The number of the next micro-batch.
        self.first = 0

    @property
    def under_way(self) -> bool:
        return self._before is not None

    @property
    def program(self) -> Program:
        assert self._before is not None
        return self._before.step.variant.worker.program

    def loss(self) -> Tensor | None:
        """The mean loss of the step under way, whose forwards have all run, if it is known here."""
        before = self._before
        return before.step.mean(before.number) if before else None

    def run(self, step: Step, scale: float, number: int) -> None:
        """Begins a step, and ends the one before it: its gradients get to the shards."""
        self._refuse(step)
        worker, before = step.variant.worker, self._before
        now = UnderWay(step, scale, number, worker.shards.leaves_of_next(step.together))
        if self._versions is None:
            self._versions = Versions(worker.shards)
        self._go(self._tasks(now, before), step.issued)
        self._end(before, step.issued)
        worker.mail.leave_open()
        if worker.code.stashes:
            self._versions.keep()
        self._before, self.first = now, (self.first + step.count) % NUMBERS

    def finish(self, issued: list[Issued]) -> None:
        """Runs what is left of the last step."""
        before = self._before
        assert before is not None and self._versions is not None
        self._go(((issue, task) for issue, task in self._tasks(before, before) if issue is None), issued)
        self._end(before, issued)
        before.step.variant.worker.mail.close()
        self._versions.give_up()
        self._before = self._versions = None

    def _tasks(self, now: UnderWay, before: UnderWay | None) -> Iterator[tuple[UnderWay | None, Task]]:
        """With what they are of; none for the step before."""
        code = now.step.variant.worker.code
        given = (before.step.count, before.scale) if before else None
        for older, task in steady_tasks(code, now.step.count, now.scale, given):
            yield None if older else now, task

    def _go(self, order: Iterator[tuple[UnderWay | None, Task]], issued: list[Issued]) -> None:
        if self._before:
            self._before.step.issue_to(issued)
        issues = [(issue or self._before, task) for issue, task in order]
        for (issue, task), (other, following) in zip(issues, [*issues[1:], *issues[-1:]], strict=True):
            assert issue is not None and other is not None
            # What the next one receives may come while this one runs.
            if issue.step.expect(task):
                other.step.expect(following)
            issue.step.variant.worker.shards.arrived = issue.arrived
            issue.step.do(task)

    def _end(self, before: UnderWay | None, issued: list[Issued]) -> None:
        if before is None:
            return
        worker = before.step.variant.worker
        worker.shards.arrived = before.arrived
        run = Run(worker, no_numbers, issued, saving=True, step=before.step.together, leaves=before.leaves)
        run.finish(goes_on=True)

    def _refuse(self, step: Step) -> None:
        """On all ranks, for what all know."""
        variant = step.variant
        program, worker = variant.worker.program, variant.worker
        require_one_loss(program, variant.captured.output_names())
        if worker.code.step is None and worker.code.blocks:
            raise without_backward()
        if step.count < program.blocks:
            raise _refused(
                f"a step of {step.count} micro-batches, on {program.blocks} stages",
                why="the rest of a step runs in the next one, which must be long enough for that",
                fix=f"give `train_step` a list of {program.blocks} batches or more, or one that is cut:"
                f" `sw.parallelize(..., micro_batches={program.blocks})`; or take `1f1b`",
            )
        others = step.variants | (self._before.step.variants if self._before else set())
        if len(others) > 1:
            raise _refused(
                "micro-batches of different programs are in flight together",
                why="each shape, mode and set of trained parameters has a program of its own",
                fix="before a step with others call `model.finish()` and `optimizer.step()`; let those of one"
                " step share a program",
            )
        if step.hooked_anywhere or worker.scaling or variant.borrowed:
            _refuse_settings(step)


def _refuse_settings(step: Step) -> NoReturn:
    if step.hooked_anywhere:
        raise _refused(
            "a parameter has a hook",
            why="it would see gradients of two steps alternately",
            fix="change gradients between `train_step` and `optimizer.step()`",
        )
    if step.variant.worker.scaling:
        raise _refused(
            "float16 scales the loss",
            why="the scale may change during a step",
            fix='take precision="bf16", or `1f1b`',
        )
    raise _refused(
        "for these shapes the program shards parameters differently than the model holds them",
        why="they are gathered for each forward, and those in flight would be lost",
        fix="make the model with an example of these shapes, or take `1f1b`",
    )


def _refused(what: str, *, why: str, fix: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0814", f"{what}, and the plan runs steps without a pipeline flush", why=why, fix=fix
    )
