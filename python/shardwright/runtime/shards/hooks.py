"""Hooks of parameters: kept where a rank holds the whole of one, refused where it holds a part."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from torch import Tensor, nn

from ...errors import RuntimeFault
from ..programs.regions import whole
from .held import split
from .own_state import refusal
from .shards import Shards

REGISTER = ("register_hook", "register_post_accumulate_grad_hook")
FIX = (
    "change gradients between backward and `optimizer.step()`, where elementwise changes are right on shards,"
    " or take a plan that does not shard this parameter"
)


def has_hooks(parameters: Iterable[Tensor]) -> bool:
    return any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters)


def refuse_hooks_on_parts(shards: Shards) -> None:
    """Whoever registers a hook on a part hears at once that it would not see the gradient."""
    for shard in shards.held:
        if shard.tensor.kind == "param" and shard.region != whole(shard.tensor.factors):
            for name in REGISTER:
                setattr(shard.data, name, _Refusing(shard.tensor.names[0], name))


def carry_hooks(module: nn.Module, shards: Shards) -> None:
    """Brings the hooks of a module's parameters to this rank's copies of them."""
    program = shards.program
    divided = {tensor.id for tensor in split(program, program.parameters())}
    of_name = {name: tensor for tensor in program.parameters() for name in tensor.names}
    originals = {id(parameter): name for name, parameter in module.named_parameters()}
    for name, parameter in module.named_parameters():
        tensor = of_name.get(name)
        for register, hooks in zip(REGISTER, _hooks_of(parameter), strict=True):
            if hooks and tensor is not None and tensor.id in divided:
                raise _on_a_part(name, "the plan shards it among the ranks")
            for hook in hooks:
                _refuse_memory_of(hook, name, originals)
                for shard in shards.held if tensor is not None else ():
                    if shard.tensor is tensor and shard.data.requires_grad:
                        getattr(shard.data, register)(hook)


def _hooks_of(parameter: Tensor) -> tuple[list[Callable[..., Any]], list[Callable[..., Any]]]:
    after: Any = getattr(parameter, "_post_accumulate_grad_hooks", None)
    before: Any = parameter._backward_hooks
    return list((before or {}).values()), list((after or {}).values())


def _refuse_memory_of(hook: Callable[..., Any], name: str, originals: dict[int, str]) -> None:
    """A hook that reads the module's own parameters would see values that are trained no more."""
    for value in _remembered(hook):
        if id(value) in originals:
            raise RuntimeFault(
                "SW0807",
                f"a hook of parameter {name!r} reads {originals[id(value)]!r} of the module",
                why="the parallel model has parameters of its own, and those of the module stay as they are",
                fix="register the hook on the parallel model's parameter, after `parallelize`",
            )


def _remembered(hook: Any) -> Sequence[Any]:
    if isinstance(hook, functools.partial):
        return [*hook.args, *hook.keywords.values(), *_remembered(hook.func)]
    function = getattr(hook, "__func__", hook)
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    return [*cells, *(getattr(function, "__defaults__", None) or ()), getattr(hook, "__self__", None)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


class _Refusing:
    """Stands for a method of one parameter."""

    def __init__(self, parameter: str, method: str):
        self._parameter, self._method = parameter, method

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise _on_a_part(self._parameter, f"this rank holds a shard of it (`{self._method}`)")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise refusal(f"`{self._parameter}`")


def _on_a_part(name: str, why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0807", f"a hook on parameter {name!r} would be called with parts of its gradient", why=why, fix=FIX
    )
