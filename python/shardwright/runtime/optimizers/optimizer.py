"""PyTorch's own optimizers over the shards of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...errors import RuntimeFault, with_article
from ..agreement.alike import Words, require_alike
from ..guards.overflow_guard import belongs_to
from ..module import ParallelModule
from ..shards.own_state import keep_state_here
from .groups import given_params, listed_params, resolve
from .loading import know_groups
from .rules import Group, Rules
from .step_guard import trust
from .wholes import Wholes

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
    _refuse_other_model(model)
    params = listed_params(params)

    def asked() -> dict[str, Any]:
        _refuse_other_class(cls)
        return {"the class": cls, **options, "elementwise": elementwise, **_groups(params)}

    require_alike(model.comm, "sw.optimizer", asked)
    rules = Rules(model.program, model.comm.device, cls, options, elementwise)
    groups = resolve(model, params)
    wholes = Wholes(model.shards, model.comm, rules.check(groups))
    wholes.fetch()
    held = [shard.data for shard in model.shards.held if shard.tensor.kind == "param"]
    made = cls([group.as_torch(wholes.instead_of) for group in groups], **fused_on_gpus(cls, options, held))
    serve(wholes, made, groups)
    plain = made.add_param_group

    def add_param_group(param_group: Mapping[str, Any]) -> None:
        param_group = {**param_group, "params": given_params(param_group["params"])}
        require_alike(model.comm, "add_param_group", lambda: _groups([param_group]))
        added = resolve(model, [param_group], rest=False)
        wholes.add(rules.check(added))
        wholes.fetch()
        plain(added[0].as_torch(wholes.instead_of))
        groups.extend(added)
        serve(wholes, made, groups)
        trust(made)

    made.add_param_group = add_param_group  # type: ignore[method-assign]
    make_known(model, made, groups)
    return made


def make_known(model: ParallelModule, made: Optimizer, groups: Sequence[Group]) -> None:
    """Whoever asks later what it steps, and whether that is right, need not look at it."""
    keep_state_here(model, made)
    know_groups(made, model, groups)
    belongs_to(made, model.comm)
    model.stepping.add(made, alike=True)
    trust(made)


# Each has one kernel for all of a step, on GPUs.
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
# Who gives one of these has chosen.
HOW = ("fused", "foreach", "capturable", "differentiable")


def fused_on_gpus(cls: Any, options: Mapping[str, Any], held: Sequence[Tensor]) -> dict[str, Any]:
    """PyTorch's own choice on a GPU needs memory of the parameters' size for a moment; a fused step needs
    none, and is quicker."""
    chosen = cls not in FUSED or any(options.get(name) is not None for name in HOW)
    if chosen or not held or not all(x.device.type == "cuda" and x.is_floating_point() for x in held):
        return dict(options)
    return {**options, "fused": True}


def serve(wholes: Wholes, made: Optimizer, groups: Sequence[Group]) -> None:
    """It has been shown whole parameters, of which it may have made its state, and gets parts for them."""
    if wholes:
        wholes.settle(made, [group.params for group in groups])
        wholes.serve(made)


def _groups(params: list[Any] | None) -> dict[str, Any]:
    """By name what each group is given. Of tensors ranks hold others: what they mean is compared later."""
    if params is None or not params or not all(isinstance(entry, Mapping) for entry in params):
        return {"params": _means(params)}
    settings: dict[str, Any] = {"the number of groups": len(params)}
    for at, group in enumerate(params):
        for key, value in group.items():
            settings[f"{key} of group {at}"] = _means(value) if key == "params" else value
    return settings


def _means(params: Any) -> Any:
    """Names, or what they are else. A rank of a pipeline may hold none of a group's parameters."""
    given = [params] if isinstance(params, (str, Tensor)) else params
    if given is None or (given and all(isinstance(item, str) for item in given)):
        return given
    return Words("parameters")


def _refuse_other_model(model: Any) -> None:
    if not isinstance(model, ParallelModule):
        raise RuntimeFault(
            "SW0831",
            f"`sw.optimizer` is given {with_article(type(model).__name__)} for its model",
            why="it goes over the shards of a model that `sw.parallelize` has returned",
            fix="parallelize first: `model = sw.parallelize(model, example)`; for a module that holds a"
            " parallelized one, call this for the inner model",
        )


def _refuse_other_class(cls: Any) -> None:
    """One that is made already, or the arguments in another order."""
    if isinstance(cls, Optimizer) or not callable(cls):
        made = isinstance(cls, Optimizer)
        raise RuntimeFault(
            "SW0831",
            f"`sw.optimizer` is given {'one that is made already' if made else repr(cls)} for its class",
            why="it makes the optimizer itself, over this rank's shards: it takes the class and its options",
            fix=f"write `sw.optimizer(model, torch.optim.{type(cls).__name__ if made else 'AdamW'}, lr=...)`",
        )
