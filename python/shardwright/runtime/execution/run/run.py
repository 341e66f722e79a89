"""One forward of a rank's program, and its backward: the `run` of emitted code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ....errors import RuntimeFault
from ...programs.program import Block
from ..kinds import require_kind
from ..worker import Worker
from .calls import Calls
from .gradients import Gradients
from .state import Issued


class Run(Calls, Gradients):
    # What the module calls.

    def begin(self) -> None:
        """What a step begins with."""
        if self.worker.code.begin is not None:
            self.worker.code.begin(self, self.leaves.tree, self.worker.constants)

    def forward(self, inputs: Sequence[Tensor]) -> list[Any]:
        """All blocks, in turn. Outputs in the graph's order; `None` for those that do not leave."""
        outputs: list[Any] = [None] * len(self.worker.role.outputs)
        for block in self.worker.code.blocks:
            outputs = self.forward_of(block, inputs, outputs)
        return outputs

    def forward_of(self, block: Block, inputs: Sequence[Tensor], outputs: list[Any]) -> list[Any]:
        """One block's, given the outputs of those before it; `inputs` are those of all."""
        worker, self._inputs = self.worker, inputs
        if self._leaves:
            self.leaves = worker.shards.leaves(self._step)
        self._leaves[block.number] = self.leaves
        self._versions = worker.shards.versions()
        self._received = []
        with torch.enable_grad() if self._saving else torch.no_grad(), _no_autocast(self.comm.device):
            given = block.forward(self, self.leaves.tree, worker.constants, *inputs[block.inputs])
        worker.received.setdefault(block.forward, tuple(self._received))
        self._state = "forwarded"
        present = [(at, value) for at, value in enumerate(_listed(given, len(outputs))) if value is not None]
        self._given[block.number] = [at for at, _ in present]
        made = dict(present)
        return [made.get(at, before) for at, before in enumerate(outputs)]

    def backward(self, seeds: Sequence[Tensor], *, last: bool = True) -> dict[int, Tensor]:
        """The gradients of inputs that have one, by the inputs' positions.

        In the last micro-batch of a step the gradients of parameters become whole and move to the
        shards, else they stay local.
        """
        [block] = self.worker.code.blocks
        if block.backward_weights is None:
            gradients = self.backward_of(block, seeds, last=last)
        else:
            gradients = self.inputs_of(block, seeds)
            self.weights_of(block, last=last)
        if last:
            self.finish()
        return gradients

    def backward_of(self, block: Block, seeds: Sequence[Tensor], *, last: bool) -> dict[int, Tensor]:
        gradients = self._back(block, block.backward, last, *self._scaled(seeds))
        self._end_backward(block)
        return self._of_inputs(gradients)

    def inputs_of(self, block: Block, seeds: Sequence[Tensor]) -> dict[int, Tensor]:
        """The first half of a block's backward."""
        gradients = self._back(block, block.backward_inputs, *self._scaled(seeds))
        self._state = "forwarded"
        return self._of_inputs(gradients)

    def weights_of(self, block: Block, *, last: bool) -> None:
        """The second half: gradients of parameters."""
        self._back(block, block.backward_weights, last)
        self._end_backward(block)

    def _scaled(self, seeds: Sequence[Tensor]) -> Sequence[Tensor]:
        scaling = self.worker.scaling
        return scaling.scaled(seeds) if scaling else seeds

    def _back(self, block: Block, code: Callable[..., Any] | None, *given: Any) -> Any:
        self._begin_backward()
        self.leaves = self._leaves.get(block.number, self.leaves)
        if code is None:
            raise without_backward()
        self._received = []
        with torch.no_grad(), _no_autocast(self.comm.device):
            self.worker.shards.bring_together(self.leaves)
            gradients = code(self, self.leaves.tree, self.worker.constants, *given)
            self._settle()
        self.worker.received.setdefault(code, tuple(self._received))
        return gradients

    def _end_backward(self, block: Block) -> None:
        self._ended.add(block.number)
        open_ = any(not self._has_ended(one.number, one.trains) for one in self.worker.code.blocks)
        self._state = "forwarded" if open_ else "done"

    def _has_ended(self, block: int, trains: bool) -> bool:
        """A block without a backward may run its forward after the backwards of others."""
        return block in self._ended if trains else block in self._given

    def _of_inputs(self, gradients: Any) -> dict[int, Tensor]:
        worker = self.worker
        positions = [worker.program.tensors[number].position for number in worker.role.gradients]
        return dict(zip(positions, _listed(gradients, len(positions)), strict=True))

    def finish(self, *, goes_on: bool = False) -> None:
        """The end of a step: gradients are there, and move to the shards. While another one `goes_on` its
        messages are on their way."""
        worker = self.worker
        with torch.no_grad(), _no_autocast(self.comm.device):
            worker.shards.bring_together(self.leaves)
            if worker.code.end is not None:
                worker.code.end(self, self.leaves.tree, worker.constants)
                self._settle()
            if not goes_on:
                worker.mail.clear()
            if worker.scaling:
                self._unscale(worker.scaling.scale)
            worker.shards.take_gradients(self.leaves)

    def seeded(self, block: Block) -> list[int]:
        """The positions of the outputs for which the backward of a block takes a gradient."""
        outputs = self.worker.role.outputs
        given = self._given.get(block.number, [])
        return [at for at in given if (output := outputs[at]) is not None and output.grad]

    @property
    def is_done(self) -> bool:
        """Whether all its blocks have run, and their backwards."""
        return self._state == "done"

    # What emitted code calls.

    def update(self, shard: int, x: Tensor) -> None:
        worker = self.worker
        if ("update", shard) not in worker.compared:
            held = worker.shards.held[shard]
            require_kind(x, held.tensor, held.region, held.tensor.dtype, worker.role.file)
            worker.compared.add(("update", shard))
        worker.shards.update(shard, x)

    # Inside.

    def _begin_backward(self) -> None:
        if not self.worker.code.trains or not self._saving:
            raise without_backward()
        if self._state != "forwarded":
            raise RuntimeFault(
                "SW0709",
                "backward through the same forward a second time",
                why="what it kept has been freed",
                fix="run the forward again; from several outputs begin one backward, from their sum",
            )
        if self._versions != self.worker.shards.versions():
            raise RuntimeFault(
                "SW0709",
                "a parameter has been modified by an inplace operation since the forward",
                why="it is sharded between ranks, and backward gathers it again",
                fix="change parameters after backward",
            )
        self._state = "in backward"


def begin(worker: Worker, issued: list[Issued], step: object) -> None:
    """Runs what a step begins with."""
    Run(worker, no_numbers, issued, saving=False, step=step).begin()


def no_numbers(*_: Any) -> Tensor:
    raise AssertionError("what runs once a step draws nothing")


def without_backward() -> RuntimeFault:
    return RuntimeFault(
        "SW0709",
        "this forward has no backward",
        why="it was run without gradients, and kept nothing for a backward",
        fix="run the forward outside torch.no_grad()",
    )


def _no_autocast(device: torch.device) -> Any:
    """What autocast casts around a call is in the program."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def _listed(outputs: Any, count: int) -> list[Any]:
    if isinstance(outputs, tuple):
        return list(outputs)
    return [outputs] if count else []
