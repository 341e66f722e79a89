"""Steps of a parallel model: forward and backward of several batches, and gradients at the end."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...errors import RuntimeFault
from ..communication.timed import Notes, recorder
from ..communication.watch import inside
from ..execution import inputs as given_inputs
from ..execution.shared import known_to_all
from ..execution.steps import Step
from ..facade.passing import program_runs
from ..guards.out_of_memory import memory_explained
from ..guards.part_gradients import guard
from ..shards.hooks import has_hooks
from .base import Base

if TYPE_CHECKING:
    from ...report.step_profile import StepProfile


class Steps(Base):
    def train_step(self, batches: Any, scale: float | None = None) -> Tensor | None:
        """Forward and backward of each batch; gradients are reduced once, at the end.

        The same as `for b in batches: (model(b) * scale).backward()`, `scale` being one over their
        number unless given. `batches` is one batch (a tensor, a tuple of arguments, or a mapping of
        them) or a list of them; a list of tensors is one batch where the model takes several. Returns
        the mean loss, or `None` on a rank that has no loss. Under `2bw` gradients and loss are those of the
        batches of the call before, and of the first call there are none; `finish` has those of the last.
        """
        watching = recorder.get()
        if watching is None:
            return self._train_step(batches, scale)
        notes = watching.begin(self)  # type: ignore[arg-type]
        loss = self._train_step(batches, scale, notes)
        notes.close()
        watching.end(notes)
        return loss

    def _train_step(self, batches: Any, scale: float | None, notes: Notes | None = None) -> Tensor | None:
        """`notes` are taken where it is recorded; then all ranks do so."""
        self.issued = [] if notes is None else notes
        self._require_backward("a step")
        self._refuse_hooks_of_calls()
        with inside("train_step"), program_runs(), memory_explained(self.program, self.comm, "a step"):
            micro = self._micro_batches

            def given() -> list[given_inputs.Arguments]:
                calls = given_inputs.batches_of(batches, self._tensors)
                return calls if micro is None else micro.cut([self._filled(batch) for batch in calls])

            kind = "train_step" if notes is None else "train_step, recorded"
            calls = self._agreed(kind, given, scale, says=has_hooks(self._parameters_here()))
            number = len(calls) if micro is None else len(micro.numbers)
            shares = [1.0] * number if micro is None else micro.shares(calls)
            # What counts nothing may have a loss that is no number.
            counted = [(call, share) for call, share in zip(calls, shares, strict=True) if share]
            calls, shares = [call for call, _ in counted], [share for _, share in counted]
            chosen = [self.variants.select(call, only_loss=True) for call in calls]
            step = Step(
                chosen,
                calls,
                shares,
                shards=self.shards,
                inputs=self.inputs,
                number=self.step,
                issued=self.issued,
                hooked=self._agreement.said,
                first=self._steady.first,
            )
            goes_on = chosen[-1].worker.program.goes_on
            # The losses are those of the step before: whoever waits for them waits for nothing of this one.
            before = self._loss_before() if goes_on else None
            with nullcontext() if notes is None else notes.of_step(chosen):
                if goes_on:
                    self._steady.run(step, 1 / number if scale is None else scale, number)
                else:
                    step.run(1 / number if scale is None else scale)
            guard(self._in_parts)
            self._agree_about_overflow({})
            self._count(chosen[-1])
            self._agreement.count_step()
            if goes_on:
                return before
            return known_to_all(chosen[-1].worker.program, self.comm, step.mean(number))

    def profile_step(
        self, batches: Any, cluster: str | None = None, *, optimizer: str = "adamw", steps: int = 5
    ) -> StepProfile:
        """Runs some `train_step`s and says where they take longer than predicted: `print` what this returns.

        The prediction is for a `cluster`, a name or its file, or for the devices here as far as they are
        known. Gradients, buffers and the count of steps are afterwards as they were. All ranks call this.
        """
        if self._profile_step is None:
            raise RuntimeFault(
                "SW0861",
                "this cannot be recorded",
                why="the program was loaded without what measures it",
                fix="make the model by `sw.parallelize`",
            )
        return self._profile_step(self, batches, cluster, optimizer, steps)  # type: ignore[arg-type]

    def finish(self) -> Tensor | None:
        """The rest of the last `train_step`, where steps follow each other without a pause (`2bw`).

        Gradients of its batches are in `.grad` then. Returns their mean loss, or `None` if nothing is left.
        All ranks must call this.
        """
        if not self._steady.under_way:
            return None
        self.issued = []
        with self._together("finish"), program_runs():
            loss = self._loss_before()
            self._steady.finish(self.issued)
            guard(self._in_parts)
            return loss

    def _loss_before(self) -> Tensor | None:
        """That of the step under way."""
        if not self._steady.under_way:
            return None
        return known_to_all(self._steady.program, self.comm, self._steady.loss())

    def _refuse_hooks_of_calls(self) -> None:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            raise RuntimeFault(
                "SW0806",
                "the model's hooks would not run in `train_step`",
                why="they are hooks of its call",
                fix="`loss = model(...); loss.backward()`, which is the same step"
                if self.program.blocks == 1
                else "remove them, and do before and after `train_step` what they do",
            )
