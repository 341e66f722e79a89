"""A program as one node of the caller's autograd graph, and what its backward starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import RuntimeFault
from ..communication.watch import inside
from ..programs.program import Program
from .run import Run

# Of the seeds of a backward, and of the positions of the outputs that really have a gradient: the gradients
# of what was given, by position, and of parameters, by `id`.
Through = Callable[[Sequence[Tensor], Sequence[int]], tuple[Mapping[int, Tensor], dict[int, Tensor]]]


def differentiable(
    run: Run,
    given: Sequence[Tensor],
    parameters: Sequence[Tensor],
    outputs: Sequence[Any],
    through: Through,
) -> list[Any]:
    """The outputs as results of one node, also those whose gradient only other ranks need.

    So `loss.backward()` starts the backward of every rank that has the loss. The node's gradients are
    those of the tensors that were given, and of this rank's parameters: autograd itself accumulates them,
    calls their hooks, or gives them to who asked by `torch.autograd.grad`. What only unused outputs read has
    none.
    """
    detached = [value.detach() if isinstance(value, Tensor) else value for value in outputs]
    places, seeded = _places(run, outputs), _seeded(run)
    wanting = [at for at, value in enumerate(given) if value.requires_grad]
    trained = [parameter for parameter in parameters if parameter.requires_grad]

    likes = {place: _Like.from_tensor(outputs[place]) for place in seeded}

    def backward(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        _refuse_second_order()
        given_to = {place: grad for place, grad in zip(places, grads, strict=True) if grad is not None}
        seeds = [given_to[at] if at in given_to else likes[at].zeros() for at in places if at in likes]
        with inside("backward", new=False):
            gradients, arrived = through(seeds, list(given_to))
        return [
            *(_as(gradients.get(at), given[at]) for at in wanting),
            *(arrived.pop(id(parameter), None) for parameter in trained),
        ]

    if places:
        anchor = torch.zeros((), requires_grad=True)
        boxes = [[detached[place]] for place in places]
        values = _Outside.apply(anchor, backward, boxes, *(given[at] for at in wanting), *trained)
        for place, value in zip(places, values, strict=True):
            detached[place] = value
    return detached


def after_this_backward(action: Callable[[], None]) -> None:
    """Once autograd has done all else; this is inside of a node."""
    torch.autograd.Variable._execution_engine.queue_callback(action)


def accumulate(parameters: Sequence[Tensor], arrived: Mapping[int, Tensor]) -> None:
    """As the end of a backward: hooks of parameters are called."""
    reached = [parameter for parameter in parameters if id(parameter) in arrived]
    if reached:
        torch.autograd.backward(reached, [arrived[id(parameter)] for parameter in reached])


def pass_on(given: Sequence[Tensor], gradients: Mapping[int, Tensor]) -> None:
    """Brings the gradients of inputs to what made them."""
    wanting = [at for at, value in enumerate(given) if value.requires_grad and at in gradients]
    if wanting:
        torch.autograd.backward(
            [given[at] for at in wanting], [_as(gradients[at], given[at]) for at in wanting]
        )


def require_one_loss(program: Program, names: Sequence[str]) -> None:
    """Before a step, by what all ranks know, of which only some may have the outputs, which are called so."""
    if not program.seeded:
        raise nothing_trains()
    outputs = (output for role in program.roles for output in enumerate(role.outputs))
    shapes = {at: program.tensors[output.tensor].shape for at, output in outputs if output is not None}
    scalars = [at for at in program.seeded if shapes[at] == ()]
    others = [at for at in program.seeded if shapes[at] != ()]
    if len(scalars) != 1 or (program.blocks > 1 and others):
        names_of_losses = [
            f"`{names[at]}`" if at < len(names) else f"output {at}" for at in scalars or others
        ]
        raise _not_one_loss(
            names_of_losses if scalars else [], others=names_of_losses, in_steps=program.blocks > 1
        )


def nothing_trains() -> RuntimeFault:
    return RuntimeFault(
        "SW0709",
        "`train_step` has nothing to train",
        why="no output of the model depends on a parameter that requires a gradient",
        fix="let some require one, `requires_grad_(True)`, or call the model for its outputs alone",
    )


def _not_one_loss(scalars: Sequence[str], *, others: Sequence[str] = (), in_steps: bool) -> RuntimeFault:
    outputs = f"the model has {', '.join(scalars)}" if scalars else f"the model has none: {', '.join(others)}"
    by_hand = "call the model, and `backward` from what you compute of its outputs; or "
    alone = "let the model compute its loss, and return that as its only scalar"
    return RuntimeFault(
        "SW0708",
        "`train_step` needs one scalar output to start from",
        why=f"{outputs}, and it is not known how to weight them",
        fix=alone if in_steps else by_hand + alone,
    )


def loss_of(run: Run, outputs: Sequence[Any]) -> Tensor | None:
    """The one output that `train_step` can start backward from."""
    places = _places(run, outputs)
    scalars = [outputs[place] for place in places if outputs[place].dim() == 0]
    if places and len(scalars) != 1:
        raise _not_one_loss([f"{len(scalars)} scalars"], in_steps=run.worker.program.blocks > 1)
    return scalars[0] if scalars else None


def seeds_of(places: Sequence[int], outputs: Sequence[Any], scale: float) -> list[Tensor]:
    """What backward starts from, for the outputs at some positions."""

    def seed(x: Tensor) -> Tensor:
        return torch.full_like(x, scale) if x.dim() == 0 else torch.zeros_like(x)

    return [seed(outputs[place].detach()) for place in places]


class _Outside(torch.autograd.Function):
    """The program as one node of the caller's graph."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        backward: Callable[[Sequence[Tensor | None]], list[Tensor | None]],
        boxes: list[list[Tensor]],
        *given: Tensor,
    ) -> Any:
        # Zeros are a gradient, and an output that nobody uses has none.
        ctx.set_materialize_grads(False)
        ctx.program_backward = backward
        return tuple(box[0].detach() for box in boxes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, None, None, *ctx.program_backward(grads))


class _Like(NamedTuple):
    """What an output looks like, without its memory."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def from_tensor(x: Tensor) -> _Like:
        return _Like(x.shape, x.dtype, x.device)

    def zeros(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def _refuse_second_order() -> None:
    if torch.is_grad_enabled():
        raise RuntimeFault(
            "SW0810",
            "gradients of a parallelized model's gradients are asked for",
            why="with `create_graph=True` they would be differentiable, and a program has one backward",
            fix="compute such a penalty in a model that is not parallelized",
        )


def _as(gradient: Tensor | None, like: Tensor) -> Tensor | None:
    return None if gradient is None else gradient.to(like.device)


def _seeded(run: Run) -> list[int]:
    """The positions of the outputs for which this rank's backward takes a seed."""
    return [at for at, output in enumerate(run.worker.role.outputs) if output is not None and output.grad]


def _places(run: Run, outputs: Sequence[Any]) -> list[int]:
    """The positions of this rank's outputs that need a gradient on any rank."""
    return [at for at in run.worker.program.seeded if isinstance(outputs[at], Tensor)]
