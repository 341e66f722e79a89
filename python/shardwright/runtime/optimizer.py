"""PyTorch's own optimizers over the shards of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.optim import Optimizer

from ..errors import RuntimeFault
from .groups import Group, resolve
from .held import elsewhere, split
from .module import ParallelModule
from .overflow_guard import belongs_to
from .own_state import keep_state_here
from .program import TensorInfo
from .reach import Reach, reach_of
from .step_guard import trust

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)


def optimizer(
    model: ParallelModule,
    cls: Callable[..., AnyOptimizer],
    params: Iterable[Any] | None = None,
    *,
    elementwise: bool = False,
    **options: Any,
) -> AnyOptimizer:
    """`cls` over this rank's shards; all ranks must call this.

    `params` are parameters, or groups of them as `cls` takes them. A parameter is one of
    `model.parameters()`, a name of the single-device model, or a glob of names. What groups of names
    leave out is in a last group with the default options. `elementwise` says of a class of your own
    that it treats each element of a tensor by itself; without it that is tried out.
    """
    _refuse_other_things(model, cls)
    rules = _Rules(model, cls, options, elementwise)
    groups = resolve(model, params)
    rules.check(groups)
    made = cls([group.as_torch() for group in groups], **options)
    plain = made.add_param_group

    def add_param_group(param_group: Mapping[str, Any]) -> None:
        added = resolve(model, [param_group], rest=False)
        rules.check(added)
        plain(added[0].as_torch())
        trust(made)

    made.add_param_group = add_param_group  # type: ignore[method-assign]
    keep_state_here(model, made)
    belongs_to(made, model.comm)
    trust(made)
    return made


def require_right(model: ParallelModule, made: Optimizer) -> None:
    """Of one that PyTorch's constructor made over this rank's shards; no rank asks another."""
    tensors = {id(shard.data): shard.tensor.id for shard in model.shards.held}
    groups = []
    for group in made.param_groups:
        params = [parameter for parameter in group["params"] if id(parameter) in tensors]
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append(Group(params, options, {tensors[id(parameter)] for parameter in params}))
    _Rules(model, type(made), made.defaults, elementwise=False).check(groups)


def _refuse_other_things(model: Any, cls: Any) -> None:
    """The first two arguments, in another order or already used."""
    if not isinstance(model, ParallelModule):
        raise RuntimeFault(
            "SW0831",
            f"`sw.optimizer` is given a {type(model).__name__} for its model",
            why="it goes over the shards of a model that `sw.parallelize` has returned",
            fix="parallelize first: `model = sw.parallelize(model, example)`; for a module that holds a"
            " parallelized one, call this for the inner model",
        )
    if isinstance(cls, Optimizer) or not callable(cls):
        made = isinstance(cls, Optimizer)
        raise RuntimeFault(
            "SW0831",
            f"`sw.optimizer` is given {'one that is made already' if made else repr(cls)} for its class",
            why="it makes the optimizer itself, over this rank's shards: it takes the class and its options",
            fix=f"write `sw.optimizer(model, torch.optim.{type(cls).__name__ if made else 'AdamW'}, lr=...)`",
        )


@dataclass(frozen=True)
class _Rules:
    """What a class of optimizers needs of the parameters that it is given."""

    model: ParallelModule
    cls: Callable[..., Optimizer]
    options: Mapping[str, Any]
    elementwise: bool

    def check(self, groups: Sequence[Group]) -> None:
        """The same on all ranks, since all know what is in a group elsewhere."""
        if self.elementwise:
            return
        program = self.model.program
        for group in groups:
            tensors = [program.tensors[number] for number in sorted(group.tensors)]
            if not split(program, tensors) and not elsewhere(program, tensors):
                continue
            reach = reach_of(self.cls, self.options, group.options, self.model.comm.device)
            bad = split(program, tensors) if reach is not Reach.ELEMENT else []
            if reach is Reach.MODEL:
                bad += [tensor for tensor in elsewhere(program, tensors) if tensor not in bad]
            if bad:
                raise self._refusal(reach, bad)

    def _refusal(self, reach: Reach, bad: Sequence[TensorInfo]) -> RuntimeFault:
        name = getattr(self.cls, "__name__", repr(self.cls))
        names = ", ".join(repr(tensor.names[0]) for tensor in bad[:3])
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        return RuntimeFault(
            "SW0715",
            f"{name} does not work on parts of a tensor",
            why=f"its step looks at {reach.value}, and the plan divides {names}{more} among the ranks",
            fix="take an elementwise optimizer for these parameters, or a plan that does not divide them",
        )
