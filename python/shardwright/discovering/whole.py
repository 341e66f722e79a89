"""What all parts have of a module that is divided: its parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

# By how much of their size parameters differ from those of the model, where they are to differ.
_SHARE = 0.5
_SMALLEST = 0.05


class Wide(nn.Module):
    """A module's forward in double precision, also where it asks for single. Hooks stand around it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _Widened():
            return self.inner.forward(*args, **kwargs)


class _Widened(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func is Tensor.float else func
        return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


# Most of what is read is the shape or the type of a tensor.
_LEAVES = (bool, int, float, str, slice, torch.device, type(None))


def _wide(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, Tensor) or kind in _LEAVES:
        return value
    if kind in (tuple, list):
        return kind(map(_wide, value))
    return pytree.tree_map(_wide_leaf, value)


def _wide_leaf(leaf: Any) -> Any:
    return torch.float64 if leaf is torch.float32 else leaf


class Whole:
    """A copy of a module in double precision. It is told from the model's own by nothing else."""

    def __init__(self, path: str, module: nn.Module, training: bool) -> None:
        self.path = path
        self.inner = copy.deepcopy(module).cpu().double()
        if self.inner.training != training:
            self.inner.train(training)
        self.wide = Wide(self.inner)
        self.wide.training = training
        self.state: Mapping[str, Tensor] = {
            **dict(self.wide.named_parameters()),
            **dict(self.wide.named_buffers()),
        }
        self.trained: list[Tensor] = [p for p in self.wide.parameters() if p.requires_grad]
        self._own = {name: tensor.detach().clone() for name, tensor in self.state.items()}

    def settle(self, seed: int) -> None:
        """Parameters of other values for each number but zero: one of zeros would hide what it multiplies."""
        generator = torch.Generator().manual_seed(seed)
        for name, tensor in self.state.items():
            kept = self._own[name]
            value = kept
            if seed and isinstance(tensor, nn.Parameter) and kept.is_floating_point():
                size = max(float(kept.std(correction=0)) if kept.numel() else 0.0, _SMALLEST)
                noise = torch.randn(kept.shape, dtype=torch.float64, generator=generator)
                value = kept + _SHARE * size * noise
            tensor.data.copy_(value)

    @property
    def changed(self) -> str | None:
        """A buffer that differs from what it was: what is divided updates none."""
        buffers = dict(self.wide.named_buffers())
        names = (
            name for name, kept in self._own.items() if name in buffers and not _same(buffers[name], kept)
        )
        return next((name.removeprefix("inner.") for name in names), None)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
