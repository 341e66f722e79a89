"""Forwards with values: what modules that are not traced give, and what they take of all operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ... import as_python
from ...errors import CaptureError
from ...generators import states
from ..chance import Recording
from .learning import which_learn
from .modules import Given, Kind, around, held_by, refusal


@dataclass
class Noted:
    given: dict[str, list[Given]]
    counts: dict[str, int]
    """How many operations each took."""
    total: int = 0

    @property
    def shares(self) -> dict[str, float]:
        return {path: count / self.total for path, count in self.counts.items() if self.total}


@contextmanager
def noting(module: nn.Module, paths: Iterable[str]) -> Iterator[Noted]:
    """Notes what calls of these modules give while the model runs."""
    noted = Noted({path: [] for path in paths}, dict.fromkeys(paths, 0))
    originals: list[tuple[nn.Module, bool, Any]] = []
    try:
        for path in paths:
            part = module.get_submodule(path)
            originals.append((part, "forward" in vars(part), part.forward))
            vars(part)["forward"] = _noted(module, path, part, noted)
        with _Counting() as counting:
            yield noted
        noted.total = counting.count
    finally:
        for part, own, forward in originals:
            if own:
                vars(part)["forward"] = forward
            else:
                vars(part).pop("forward", None)


def _noted(module: nn.Module, path: str, part: nn.Module, noted: Noted) -> Callable[..., Any]:
    forward = part.forward

    @wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = {name: tensor.detach().clone() for name, tensor in held_by(part).items()}
        passed = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        versions = [tensor._version for tensor in passed]
        state = states()
        with _Counting() as counting, Recording() as recording:
            result = forward(*args, **kwargs)
        noted.counts[path] += counting.count
        draws = bool(recording.draws) or states() != state
        if [tensor._version for tensor in passed] != versions:
            raise around(module, path, f"`{path}` changes a tensor that it is given")
        after = held_by(part)
        updated = {name: _kind(value) for name, value in before.items() if not _same(after[name], value)}
        for name, _ in part.named_parameters():
            if name in updated:
                raise _changes_parameter(path, name)
        leaves, tree = pytree.tree_flatten(result)
        try:
            results = as_python.tensors_of(path, result)
            given = [*held_by(part).values(), *as_python.written(args, kwargs)[1]]
        except as_python.NotPlain as error:
            raise around(module, path, str(error)) from None
        kinds = (_kind(x) for x in results)
        kept = (Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        learns, taught = which_learn(given, results), (x.requires_grad for x in results)
        noted.given[path].append(
            Given(tuple(kinds), tree, tuple(kept), updated, draws, tuple(learns), tuple(taught))
        )
        return result

    return call


def _changes_parameter(path: str, name: str) -> CaptureError:
    why = f"its forward changes its parameter `{name}`, which the optimizer alone may"
    return refusal(path, why, "keep the value in a buffer, or change the parameter between steps")


class _Counting(TorchDispatchMode):
    """Counts operations, and leaves no hooks on gradients, as PyTorch's own counter does."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.count += int(count(*args, **(kwargs or {}), out_val=result))
        return result


def _kind(tensor: Tensor) -> Kind:
    return tensor.dtype, tuple(tensor.shape)


def _same(now: Tensor, before: Tensor) -> bool:
    return _kind(now) == _kind(before) and torch.equal(now, before)
