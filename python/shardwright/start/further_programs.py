"""Further programs of a model: for evaluation, other shapes, other arguments."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..capture.state.hidden import tensors_in
from ..capture.state.memory import Aliases, identity, seen_in
from ..runtime import Comm, load_program
from ..runtime.agreement.together import each, from_rank_0
from ..runtime.execution.variants import Compile, Made
from ..runtime.shards.shards import without_value
from ..support.object_contents import has_attributes, walk
from .compiling import Bundle
from .starter import Starter


def skeleton_of(module: nn.Module, fixed: Collection[str] = ()) -> nn.Module:
    """A copy of the module whose parameters and buffers have no values, but for `fixed` buffers; what lies
    in their memory still lies there, and objects without tensors are the module's own."""
    held = [*module.parameters(), *module.buffers()]
    empty = {identity(tensor): without_value(tensor) for tensor in held}
    for buffer in map(module.get_buffer, fixed):
        empty[identity(buffer)] = buffer.detach().clone()
    memo = {id(tensor): empty[identity(tensor)] for tensor in held}
    memo |= {id(shared): shared for part in module.modules() for shared in _shared(part)}
    aliases = Aliases(module)
    for part in module.modules():
        for tensor in tensors_in(list(vars(part).values())):
            base = aliases.base(tensor)
            if base is not None and id(tensor) not in memo:
                memo[id(tensor)] = seen_in(base, tensor, empty[identity(base)])
    return copy.deepcopy(module, memo)


def _shared(part: nn.Module) -> list[Any]:
    """Objects such as a config, which the caller may have under other names and go on changing."""
    attributes = [(value, [inner for _, inner in walk(value, set())]) for value in vars(part).values()]
    return [
        value
        for value, inside in attributes
        if has_attributes(value) and not any(isinstance(inner, (Tensor, nn.Module)) for inner in inside)
    ]


def compiler_of(comm: Comm, starter: Starter) -> Compile:
    """Compiles the model for another call, under the same plan."""

    def compile(
        skeleton: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        only_loss: bool,
        general: bool,
    ) -> Made:
        def make() -> Bundle:
            if starter.knows_inputs:  # by their values
                return starter.further(skeleton, args, kwargs, only_loss, general)
            args_, kwargs_ = pytree.tree_map_only(Tensor, without_value, (tuple(args), dict(kwargs)))
            return starter.further(skeleton, args_, kwargs_, only_loss)

        # Ranks may be threads: nobody runs anything while the model is traced.
        comm.barrier()
        bundle = from_rank_0(comm, make)
        program = each(
            comm,
            lambda: load_program(
                bundle.files,
                digest=bundle.digest,
                world=comm.world,
                graph=bundle.graph_text,
                memory=bundle.memory,
            ),
        )
        return Made(program, bundle.captured, bundle.captured.constants)

    return compile
