"""A step on one rank: the tasks of its programs' timetables, over several micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..programs.program import Block
from ..shards.hooks import has_hooks
from ..shards.shards import Shards
from . import inputs as given_inputs
from .outside import accumulate, loss_of, pass_on, require_one_loss, seeds_of
from .reach import reach_of_step
from .run import Issued, Run, begin, no_numbers, without_backward
from .timetable import Backward, Begin, End, Forward, Inputs, Task, Weights, code_of, tasks
from .variants import Variant

# A micro-batch under way, and its outputs so far.
Started = tuple[Run, list[Any]]


class Step:
    """`chosen` are the programs of the calls; each loss counts its share of the scale."""

    def __init__(
        self,
        chosen: Sequence[Variant],
        calls: Sequence[given_inputs.Call],
        shares: Sequence[float],
        *,
        shards: Shards,
        inputs: str,
        number: int,
        issued: list[Issued],
        hooked: bool,
        first: int = 0,
    ):
        """`number` is that of the step, a part of the key of all random numbers; `hooked` says whether any
        rank's parameters have hooks. Messages know micro-batches by numbers from `first` on."""
        self._chosen, self._calls, self._shares = chosen, calls, shares
        self._shards, self._number, self.issued = shards, number, issued
        # What runs of one step have in common.
        self.together = object()
        self._parameters: list[Tensor] = [s.data for s in shards.held if s.tensor.kind == "param"]
        self.hooked_anywhere = hooked
        self._first = first
        self._under_way: dict[int, Started] = {}
        self._losses: list[Tensor | None] = [None] * len(calls)
        # What this rank reads of each, on its device: under way before anything is computed.
        self._given: dict[int, list[Tensor]] = {
            at: given_inputs.parts(variant.worker, call.tensors, inputs)
            for at, (variant, call) in enumerate(zip(chosen, calls, strict=True))
        }

    def run(self, scale: float) -> None:
        for variant in self._chosen:
            require_one_loss(variant.worker.program, variant.captured.output_names())
        codes = [variant.worker.code for variant in self._chosen]
        if any(code.step is None and code.blocks for code in codes):
            raise without_backward()
        pipelined = any(variant.worker.program.blocks > 1 for variant in self._chosen)
        # A hook of a parameter sees the gradient of each batch, as it does without `train_step`. Of another
        # block's parameters this rank knows nothing.
        hooked = self.hooked_anywhere if pipelined else has_hooks(self._parameters)
        order = list(tasks(codes, scale, alone=hooked, in_turn=pipelined))
        for task, following in zip(order, [*order[1:], order[-1]], strict=True):
            # What the next one receives may come while this one runs.
            if self.expect(task):
                self.expect(following)
            if isinstance(task, End):
                self._end(self._chosen[task.batch], hooked)
            else:
                self.do(task)

    def do(self, task: Task) -> None:
        if isinstance(task, Begin):
            self._begin(self._chosen[task.batch])
        elif isinstance(task, Forward):
            self._forward(task.batch, task.block)
        elif isinstance(task, Backward | Inputs):
            self._backward(task)
        elif isinstance(task, Weights):
            self._weights(task)

    def expect(self, task: Task) -> bool:
        return self._chosen[task.batch].worker.expect(code_of(task), self._first + task.batch)

    @property
    def count(self) -> int:
        return len(self._chosen)

    @property
    def variant(self) -> Variant:
        return self._chosen[0]

    @property
    def variants(self) -> set[int]:
        return set(map(id, self._chosen))

    def issue_to(self, issued: list[Issued]) -> None:
        """What it communicates from now on is written there."""
        self.issued = issued
        for run, _ in self._under_way.values():
            run.issued = issued

    def mean(self, number: int) -> Tensor | None:
        """Of the losses that this rank has, where `number` batches were given."""
        pairs = zip(self._losses, self._shares, strict=True)
        weighted = [x.detach() * share for x, share in pairs if x is not None]
        return torch.stack(weighted).sum(0) / number if weighted else None

    def _begin(self, variant: Variant) -> None:
        if variant.worker.code.begin is not None:
            variant.before()
            begin(variant.worker, self.issued, self.together)

    def _forward(self, batch: int, block: Block) -> None:
        variant = self._chosen[batch]
        run, outputs = self._under_way.get(batch) or self._started(variant, batch)
        variant.before()
        outputs = run.forward_of(block, self._given[batch], outputs)
        variant.after(gradients=False)
        self._under_way[batch] = run, outputs
        self._losses[batch] = loss_of(run, outputs)

    def _started(self, variant: Variant, batch: int) -> Started:
        worker = variant.worker
        masks = worker.masks(self._number, batch)
        run = Run(
            worker,
            masks,
            self.issued,
            modules=worker.modules(self._number, batch),
            saving=True,
            step=self.together,
            batch=self._first + batch,
        )
        return run, [None] * len(worker.role.outputs)

    def _backward(self, task: Backward | Inputs) -> None:
        run, outputs = self._under_way[task.batch]
        seeds = seeds_of(run.seeded(task.block), outputs, task.scale * self._shares[task.batch])
        if isinstance(task, Inputs):
            gradients = run.inputs_of(task.block, seeds)
        else:
            gradients = run.backward_of(task.block, seeds, last=task.last)
        reach_of_step(run.worker.program).keep(gradients, {}, self._shards)
        pass_on(self._calls[task.batch].tensors, gradients)
        self._leave(task.batch, run)

    def _weights(self, task: Weights) -> None:
        run, _ = self._under_way[task.batch]
        run.weights_of(task.block, last=task.last)
        self._leave(task.batch, run)

    def _leave(self, batch: int, run: Run) -> None:
        if run.is_done:
            del self._under_way[batch], self._given[batch]

    def _end(self, variant: Variant, hooked: bool) -> None:
        run = Run(variant.worker, no_numbers, self.issued, saving=True, step=self.together)
        reach = reach_of_step(variant.worker.program)
        collected = hooked or not reach.everything
        with self._shards.collecting(collected) as arrived:
            run.finish()
            variant.after(gradients=True)
        reach.keep({}, arrived, self._shards)
        accumulate(self._parameters if collected else [], arrived)
