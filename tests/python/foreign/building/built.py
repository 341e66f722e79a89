"""What building gives, and what all models have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import zoo

BATCH = 4
LARGEST = 40_000_000
"""Parameters of what counts as tiny still."""


class NotBuilt(Exception):
    """The generic code here cannot build it: that says nothing about the system."""


@dataclass
class Built:
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    task: str = ""
    kind: str = ""
    """The class of the model."""
    how: dict[str, Any] = field(default_factory=dict)


class Distance(nn.Module):
    """A model that has no loss of its own, with one: how far its results are from a wave."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return distance(self.model(*args, **kwargs))


def distance(results: Any) -> Tensor:
    losses = [_from_a_wave(x) for x in learned(results)]
    return torch.stack(losses).sum()


def learned(results: Any) -> list[Tensor]:
    """Those that have a gradient."""
    leaves = pytree.tree_leaves(results)
    return [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]


def _from_a_wave(x: Tensor) -> Tensor:
    if x.is_complex():
        x = torch.view_as_real(x)
    if x.dim() == 0:
        return x
    wave = torch.arange(x.shape[-1], dtype=x.dtype).cos()
    return (x - wave).square().mean()


def finished(
    module: nn.Module,
    kwargs: Mapping[str, Any] | None = None,
    args: tuple[Any, ...] = (),
    task: str = "",
    **how: Any,
) -> Built:
    """In float64, with a loss; the example is tried. Whoever calls has made it small."""
    kind = type(module).__name__
    require_small(module)
    without_chance(module)
    module = zoo.prepared(module)
    widen_kept(module)
    args, kwargs = wide((tuple(args), dict(kwargs or {})))
    result = tried(lambda: called(module, args, kwargs))
    if not has_loss(result):
        if not learned(result):
            raise NotBuilt("none of its results has a gradient")
        module = Distance(module).train()
    return Built(module, args, kwargs, task, kind, how)


def called(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    torch.manual_seed(0)
    with zoo.widened():
        return module(*args, **copied(kwargs))


def copied(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.clone, tree)


def tried(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise NotBuilt(said(error)) from error


def said(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def has_loss(result: Any) -> bool:
    """Whether it gives one as Transformers' models do."""
    loss = getattr(result, "loss", None)
    return isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad


def wide(tree: Any) -> Any:
    """Floating tensors in float64."""
    return pytree.tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, tree)


def widen_kept(module: nn.Module) -> None:
    """Tensors that a module keeps beside its parameters and buffers, in float64, too."""
    for part in module.modules():
        kept = {name: value for name, value in vars(part).items() if type(value) is Tensor}
        vars(part).update(wide(kept))


def require_small(module: nn.Module) -> None:
    count = sum(parameter.numel() for parameter in module.parameters())
    if count > LARGEST:
        raise NotBuilt(f"{count / 1e6:.0f} million parameters are not tiny")


def without_chance(module: nn.Module) -> None:
    """Masks are those of the single device in another test; here they only take time."""
    for part in module.modules():
        for name in (
            "p",
            "drop_prob",
            "drop_path_rate",
            "drop_path_prob",
            "dropout",
            "layerdrop",
            "drop_rate",
        ):
            value = vars(part).get(name)
            if isinstance(value, float) and 0 < value < 1:
                setattr(part, name, 0.0)


def image(channels: int, size: int, batch: int = BATCH) -> Tensor:
    return zoo.image(channels, size, batch)


def seeded() -> torch.Generator:
    torch.manual_seed(0)
    return torch.Generator().manual_seed(0)
