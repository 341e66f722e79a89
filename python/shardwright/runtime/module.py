"""A rank's end of a parallel model: an `nn.Module` like the model, with this rank's shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import RuntimeFault
from . import state
from .comm import Comm
from .program import Program
from .run import Issued, Run
from .shards import Shard, Shards, Source
from .worker import Worker, refuse_another_world


class Captured(Protocol):
    """How the model is called: between its arguments and results, and lists of tensors."""

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]: ...

    def unflatten(self, outputs: Sequence[Tensor | None]) -> Any: ...


class Positional:
    """Tensors in, tensors out."""

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        return [*args, *kwargs.values()]

    def unflatten(self, outputs: Sequence[Tensor | None]) -> Any:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class ParallelModule(nn.Module):
    """`source` gives the model's full tensors by name, one at a time; only parts of them are kept.

    With `inputs="global"` every rank is given the same batch and takes its part; with `"local"`
    each is given its part.
    """

    def __init__(
        self,
        program: Program,
        comm: Comm,
        source: Source | Mapping[str, Tensor],
        captured: Captured | None = None,
        *,
        inputs: str = "global",
        randomness: str = "keyed",
        seed: int = 0,
        generator: torch.Generator | None = None,
        training: bool = True,
    ):
        super().__init__()
        # The mode of the captured forward: dropout and batch norm are what they were then.
        self.captured_training = training
        self.train(training)
        refuse_another_world(program, comm)
        self.shards = Shards(program, comm.rank, source, comm.device)
        self.worker = Worker(
            program, comm, self.shards, seed=seed, randomness=randomness, generator=generator
        )
        self.captured: Captured = captured or Positional()
        self.inputs = inputs
        # Counts forwards of whole batches; part of the key of all random numbers.
        self.step = 0
        # What the latest step communicated.
        self.issued: list[Issued] = []
        self._places = _hold(self, self.shards)

    @property
    def program(self) -> Program:
        return self.worker.program

    @property
    def comm(self) -> Comm:
        return self.worker.comm

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs that leave, in the model's own structure; `loss.backward()` works on them."""
        self.issued = []
        saving = torch.is_grad_enabled() and self.worker.code.backward is not None
        run = self._run(micro_batch=0, saving=saving)
        self.step += 1
        outputs = run.forward(self._inputs(args, kwargs))
        if saving:
            outputs = _differentiable(run, outputs)
        return self.captured.unflatten(outputs)

    def train_step(self, batches: Any, scale: float | None = None) -> Tensor | None:
        """Forward and backward of each batch; gradients are reduced once, at the end.

        The same as `for b in batches: (model(b) * scale).backward()`, `scale` being one over their
        number unless given. `batches` is one batch (a tensor, a tuple of arguments, or a dict of
        them) or a list of them. Returns the mean loss, or `None` on a rank that has no loss.
        """
        given = batches if isinstance(batches, list) else [batches]
        if not given:
            raise RuntimeFault(
                "SW0706",
                "train_step was given no batch",
                why="it takes the mean of the losses of its batches",
                fix="give it one batch, or a list of at least one",
            )
        scale = 1 / len(given) if scale is None else scale
        self.issued = []
        losses = []
        for at, batch in enumerate(given):
            run = self._run(micro_batch=at, saving=True)
            outputs = run.forward(self._inputs(*_arguments(batch)))
            loss = _loss(run, outputs)
            run.backward(_seeds(run, outputs, scale), reduce=at == len(given) - 1)
            losses.append(loss)
        self.step += 1
        found = [loss.detach() for loss in losses if loss is not None]
        return torch.stack(found).mean(0) if found else None

    def full_state_dict(self) -> dict[str, Tensor]:
        """The state dict of the single-device model, on every rank. All ranks must call this."""
        return state.full_state_dict(self.shards, self.comm)

    def load_full_state_dict(self, full: Mapping[str, Tensor]) -> None:
        """Takes this rank's parts out of a single-device state dict."""
        state.load_full_state_dict(self.shards, full)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`to`, `cuda` and the like give the module new buffers: the shards follow."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for shard, buffers, name in self._places:
            shard.data = buffers[name]
        return self

    def extra_repr(self) -> str:
        program = self.program
        return f"{program.model}, plan {program.plan}, rank {self.comm.rank} of {program.world}"

    def _run(self, micro_batch: int, saving: bool) -> Run:
        if self.training != self.captured_training:
            ours, theirs = (
                ("training", "evaluation") if self.captured_training else ("evaluation", "training")
            )
            raise RuntimeFault(
                "SW0728",
                f"the program is for {ours}, the model is in {theirs} mode",
                why="dropout and batch norm do something else in the other mode",
                fix="parallelize the model in that mode too, and load the state dict of this one",
            )
        masks = self.worker.masks(self.step, micro_batch)
        return Run(self.worker, masks, self.issued, saving=saving)

    def _inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        return self.worker.inputs(self.captured.flatten(args, kwargs), self.inputs)


class _Outside(torch.autograd.Function):
    """The program as one node of the caller's graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, backward: Callable[[Sequence[Tensor]], None], *boxes: Any) -> Any:
        ctx.program_backward = backward
        return tuple(box[0].detach() for box in boxes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.program_backward(grads)
        return (None, None, *(None for _ in grads))


def _differentiable(run: Run, outputs: Sequence[Any]) -> list[Any]:
    """The outputs as results of one node, also those whose gradient only other ranks need.

    So `loss.backward()` starts the backward of every rank that has the loss.
    """
    found = [value.detach() if isinstance(value, Tensor) else value for value in outputs]
    places, seeded = _places(run, outputs), _seeded(run)

    def backward(grads: Sequence[Tensor]) -> None:
        run.backward([grad for place, grad in zip(places, grads, strict=True) if place in seeded])

    if places:
        anchor = torch.zeros((), requires_grad=True)
        values = _Outside.apply(anchor, backward, *([found[place]] for place in places))
        for place, value in zip(places, values, strict=True):
            found[place] = value
    return found


def _seeded(run: Run) -> list[int]:
    """The positions of the outputs for which this rank's backward takes a seed."""
    return [at for at, output in enumerate(run.worker.role.outputs) if output is not None and output.grad]


def _places(run: Run, outputs: Sequence[Any]) -> list[int]:
    """The positions of this rank's outputs that need a gradient on any rank."""
    roles = run.worker.program.roles
    needed = {
        at for role in roles for at, output in enumerate(role.outputs) if output is not None and output.grad
    }
    return [at for at in sorted(needed) if isinstance(outputs[at], Tensor)]


def _loss(run: Run, outputs: Sequence[Any]) -> Tensor | None:
    """The one output that `train_step` can start backward from."""
    places = _places(run, outputs)
    scalars = [outputs[place] for place in places if outputs[place].dim() == 0]
    if places and len(scalars) != 1:
        raise RuntimeFault(
            "SW0708",
            f"train_step needs one scalar output to start from, the model has {len(scalars)}",
            why="it cannot know how several would be weighted",
            fix="call the model and `backward` instead, or return the loss alone",
        )
    return scalars[0] if scalars else None


def _seeds(run: Run, outputs: Sequence[Any], scale: float) -> list[Tensor]:
    def seed(x: Tensor) -> Tensor:
        return torch.full_like(x, scale) if x.dim() == 0 else torch.zeros_like(x)

    return [seed(outputs[place].detach()) for place in _seeded(run)]


def _arguments(batch: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(batch, Mapping):
        return (), batch
    return (batch if isinstance(batch, tuple) else (batch,)), {}


class _Part(nn.Module):
    """A place in the model's hierarchy, so that shards have the model's own names."""


def _hold(root: nn.Module, shards: Shards) -> list[tuple[Shard, dict[str, Any], str]]:
    """Registers parameters and buffers; a second shard of one tensor gets the suffix `__1`.

    Returns where the buffers went.
    """
    places: list[tuple[Shard, dict[str, Any], str]] = []
    count: dict[int, int] = {}
    for shard in shards.held:
        number = count.get(shard.tensor.id, 0)
        count[shard.tensor.id] = number + 1
        *path, last = shard.tensor.names[0].split(".")
        last += f"__{number}" if number else ""
        place = root
        for name in path:
            place = place._modules.setdefault(name, _Part())  # type: ignore[assignment]
        # Not `register_parameter`: it refuses names that are attributes of nn.Module.
        if isinstance(shard.data, nn.Parameter):
            place._parameters[last] = shard.data
        elif shard.tensor.kind == "buffer":
            place._buffers[last] = shard.data
            places.append((shard, place._buffers, last))
            if not shard.tensor.persistent:
                place._non_persistent_buffers_set.add(last)
    return places
