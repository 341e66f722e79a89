"""An optimizer that was made over the module's own parameters goes on over this rank's parts of them.

Frameworks make it before the model is parallelized, and schedulers and callbacks hold it: it stays the same
object, and its groups are given other parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from ..module import ParallelModule
from .groups import resolve
from .optimizer import make_known, serve
from .rules import Rules
from .wholes import Wholes


def adopt(model: ParallelModule, optimizer: Optimizer, names: Sequence[Sequence[str]]) -> None:
    """`names` are by group those of its parameters. It has no state yet. All ranks must call this."""
    cls, options = type(optimizer), optimizer.defaults
    held: dict[str, list[Any]] = {}
    for shard in model.shards.held:
        for name in shard.tensor.names:
            held.setdefault(name, []).append(shard.data)
    given = [
        {**group, "params": [part for name in inside for part in held.get(name, ())]}
        for group, inside in zip(optimizer.param_groups, names, strict=True)
    ]
    groups = resolve(model, given)
    rules = Rules(model.program, model.comm.device, cls, options, elementwise=False)
    wholes = Wholes(model.shards, model.comm, rules.check(groups))
    wholes.fetch()
    for group, mine in zip(optimizer.param_groups, groups, strict=True):
        group["params"] = list(wholes.instead_of(mine.params))
    serve(wholes, optimizer, groups)
    make_known(model, optimizer, groups)
