"""Forwards with values: what modules that are not traced give, and what they take of all operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ... import as_python
from ...errors import CaptureError
from ...support.random_generators import states
from ..dispatch import called
from ..random.draws import Recording
from .exporting import exporting
from .modules import Given, Kind, around, held_by, is_function, refusal, unfit
from .plain import stood_for

# Operations of products, convolutions and attention; and elements that operators give.
_Count = tuple[int, int]


@dataclass
class Noted:
    given: dict[str, list[Given]]
    counts: dict[str, _Count]
    """How many operations each took."""
    total: _Count = (0, 0)

    @property
    def shares(self) -> dict[str, float]:
        """Of products and the like; where a model has none, of what its operators give."""
        at = 0 if self.total[0] else 1
        return {path: count[at] / self.total[at] for path, count in self.counts.items() if self.total[at]}


@contextmanager
def noting(module: nn.Module, paths: Iterable[str]) -> Iterator[Noted]:
    """Notes what calls of these modules give while the model runs."""
    noted = Noted({path: [] for path in paths}, dict.fromkeys(paths, (0, 0)))
    with ExitStack() as stack:
        for path in paths:
            if is_function(path):
                stack.enter_context(stood_for(as_python.named(path), partial(_of_function, path, noted)))
            else:
                stack.enter_context(
                    _instead(module.get_submodule(path), partial(_of_module, module, path, noted))
                )
        # Around them the model takes the way that it takes while it is traced.
        with _Counting() as counting, exporting(True):
            yield noted
    noted.total = counting.count


@contextmanager
def _instead(part: nn.Module, make: Callable[[nn.Module], Callable[..., Any]]) -> Iterator[None]:
    forward = vars(part).get("forward")
    vars(part)["forward"] = make(part)
    try:
        yield
    finally:
        del vars(part)["forward"]
        if forward is not None:
            vars(part)["forward"] = forward


def _of_module(module: nn.Module, path: str, noted: Noted, part: nn.Module) -> Callable[..., Any]:
    forward = part.forward
    refuse = partial(around, module, path)

    @wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = {name: tensor.detach().clone() for name, tensor in held_by(part).items()}
        result, one = _called(path, noted, refuse, forward, args, kwargs, [*held_by(part).values()])
        after = held_by(part)
        updated = {name: _kind(value) for name, value in before.items() if not _same(after[name], value)}
        for name, _ in part.named_parameters():
            if name in updated:
                raise _changes_parameter(path, name)
        noted.given[path].append(replace(one, updated=updated))
        return result

    return call


def _of_function(name: str, noted: Noted, original: Callable[..., Any]) -> Callable[..., Any]:
    refuse = partial(unfit, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        result, one = _called(name, noted, refuse, original, args, kwargs, [])
        if one.draws:
            raise unfit(name, "it draws random numbers")
        noted.given[name].append(one)
        return result

    return call


def _called(
    key: str,
    noted: Noted,
    refuse: Callable[[str], CaptureError],
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    held: list[Tensor],
) -> tuple[Any, Given]:
    passed = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    versions = [tensor._version for tensor in passed]
    state = states()
    with _Counting() as counting, Recording() as recording, exporting(False):
        result = function(*args, **kwargs)
    operations, elements = noted.counts[key]
    noted.counts[key] = (operations + counting.count[0], elements + counting.count[1])
    draws = bool(recording.draws) or states() != state
    if [tensor._version for tensor in passed] != versions:
        raise refuse(f"`{key}` changes a tensor that it is given")
    leaves, tree = pytree.tree_flatten(result)
    try:
        results = as_python.tensors_of(key, result)
    except as_python.NotPlain as error:
        raise refuse(f"its result is not a structure of tensors and plain values: {error}") from None
    try:
        given = [*held, *as_python.written(args, kwargs)[1]]
    except as_python.NotPlain as error:
        raise refuse(f"it is given {error}") from None
    kinds = (_kind(x) for x in results)
    kept = (Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    taught = tuple(x.requires_grad for x in results)
    # What has no gradient here may have one of other data.
    learns = tuple(any(taught) and x.requires_grad for x in given)
    return result, Given(tuple(kinds), tree, tuple(kept), {}, draws, learns, taught)


def _changes_parameter(path: str, name: str) -> CaptureError:
    why = (
        f"its forward changes its parameter `{name}`, and a module that runs as it is may only change buffers"
    )
    fix = "keep the value in a buffer, or write the parameter in the module around it, which is traced"
    return refusal(path, why, fix)


class _Counting(TorchDispatchMode):
    """Counts operations, and leaves no hooks on gradients, as PyTorch's own counter does."""

    def __init__(self) -> None:
        super().__init__()
        self.count: _Count = (0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = called(func, args, kwargs)
        operations, elements = self.count
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            operations += int(count(*args, **(kwargs or {}), out_val=result))
        elements += sum(x.numel() for x in pytree.tree_leaves(result) if isinstance(x, Tensor))
        self.count = (operations, elements)
        return result


def _kind(tensor: Tensor) -> Kind:
    return tensor.dtype, tuple(tensor.shape)


def _same(now: Tensor, before: Tensor) -> bool:
    return _kind(now) == _kind(before) and torch.equal(now, before)
