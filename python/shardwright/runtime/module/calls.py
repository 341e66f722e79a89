"""Calls of a parallel model: the forward that a caller asks for, and the backward that autograd starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..communication.timed import recorder
from ..communication.watch import inside
from ..execution import inputs as given_inputs
from ..execution.outside import (
    after_this_backward,
    differentiable,
)
from ..execution.reach import reach_of, used_anywhere
from ..execution.run import Run, begin
from ..execution.shared import handed_round, in_steps_only
from ..execution.variants import Variant
from ..facade.absent import marked
from ..facade.passing import program_runs
from ..guards.out_of_memory import memory_explained
from ..guards.part_gradients import guard
from ..guards.walks import refuse_tracing
from ..programs.parts import OutputPart, output_parts
from .base import Base


class Calls(Base):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs that leave, in the model's own structure; `loss.backward()` works on them."""
        refuse_tracing()
        # `torch.compile` would compile what the runtime does around the program, for minutes.
        return self._as_it_is(args, kwargs) if torch.compiler.is_compiling() else self._call(args, kwargs)

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if (watching := recorder.get()) is not None:
            watching.refuse_call()
        self._require_backward("another forward")
        self.issued = []
        with inside("forward"), program_runs(), memory_explained(self.program, self.comm, "a forward"):
            [call] = self._agreed("forward", lambda: [(args, kwargs)])
            variant = self.variants.select(call)
            several = variant.worker.program.blocks > 1
            saving = torch.is_grad_enabled() and variant.worker.code.trains and not several
            run, outputs = self._forward(variant, call.tensors, saving=saving)
            if several:
                run.worker.mail.clear()
                outputs = handed_round(variant.worker.program, self.comm, outputs)
                if torch.is_grad_enabled():
                    outputs = in_steps_only(variant.worker.program, outputs)
            self._count(variant)
            self._owed = bool(variant.captured.for_backward)
            if saving:
                outputs = differentiable(
                    run, call.tensors, self._parameters_here(), outputs, partial(self._through, run, variant)
                )
            names = variant.captured.output_names()
            return variant.captured.unflatten(marked(variant.worker.program, outputs, names))

    @torch._disable_dynamo  # type: ignore[attr-defined, untyped-decorator]
    def _as_it_is(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._call(args, kwargs)

    def output_regions(self, *args: Any, **kwargs: Any) -> dict[str, OutputPart | None]:
        """By name, which part of each output that leaves this rank gets: `part.of(whole)` takes it out.

        With arguments it is that of a call with these, else that of a call as in the example.
        """
        variant = self.variants.first
        if args or kwargs:
            [call] = self._agreed("output_regions", lambda: [(args, kwargs)])
            variant = self.variants.select(call)
        names = variant.captured.output_names()
        return output_parts(variant.worker.program, self.comm.rank, names)

    def rows_of(self, size: int) -> list[tuple[int, int]]:
        """The rows that each rank reads of a batch of `size`, with `inputs="local"`. All ranks call
        this: it may have to compile the program for that size."""
        assert self.pieces is not None
        variant = self.variants.first
        names = variant.captured.tensor_names(variant.captured.structure)
        if self._example is not None and self.pieces.batch is not None:
            call = given_inputs.call_of(variant.captured, *self._example, values=False)
            with inside("sampler"):
                variant = self.variants.select(self.pieces.resized(call, names, size))
        return self.pieces.rows(variant.worker.program, names, size)

    def _forward(
        self,
        variant: Variant,
        tensors: list[Tensor],
        *,
        saving: bool,
    ) -> tuple[Run, list[Any]]:
        """A call that stands alone is a step of its own: parameters may have changed since the last."""
        variant.before()
        worker = variant.worker
        if worker.code.begin is not None:
            begin(worker, self.issued, None)
        masks = worker.masks(self.step, 0)
        run = Run(worker, masks, self.issued, modules=worker.modules(self.step, 0), saving=saving)
        outputs = run.forward(given_inputs.parts(worker, tensors, self.inputs))
        variant.after(gradients=False)
        return run, outputs

    def _through(
        self, run: Run, variant: Variant, seeds: Sequence[Tensor], used: Sequence[int]
    ) -> tuple[Mapping[int, Tensor], dict[int, Tensor]]:
        """A backward that the caller has started; autograd adds what it gives to parameters."""
        self._owed = False
        program = variant.worker.program
        reach = reach_of(program, used_anywhere(program, self.comm, used, variant.captured.output_names()))
        with (
            program_runs(),
            memory_explained(program, self.comm, "a backward"),
            self.shards.collecting() as arrived,
        ):
            gradients = run.backward(seeds)
            variant.after(gradients=True)
        reach.keep(gradients, arrived, self.shards)
        self._agree_about_overflow(arrived)
        self._agreement.count_step()
        after_this_backward(partial(guard, self._in_parts))
        return gradients, arrived
