"""One step of the model on one device: what it gives, its gradients, and what it updates."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..runtime.execution.inputs import Arguments

# Of plain SGD, whose update is nothing but the gradient: others hide what size that has.
RATE = 0.1


@dataclass
class Values:
    """By kind and name."""

    by_kind: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def put(self, kind: str, name: str, value: Tensor) -> None:
        self.by_kind.setdefault(kind, {})[name] = value


@dataclass(frozen=True)
class Batches:
    """What a step is made of: calls of the model, and what the loss of each counts."""

    calls: Sequence[Arguments]
    weights: Sequence[float]


def step_of_model(
    module: nn.Module, batches: Batches, seed: int, names: Sequence[str], by_call: bool
) -> Values:
    """`names` are those of the results, and `by_call` says that all of them are compared."""
    module = copy.deepcopy(module)
    values = Values()
    losses = []
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        for (args, kwargs), weight in zip(batches.calls, batches.weights, strict=True):
            args, kwargs = fresh((args, kwargs))
            results = leaves_of(module(*args, **kwargs))
            if by_call:
                _keep_outputs(values, names, results)
            loss = sum_of(results) if by_call else loss_of(results)
            if loss is not None and loss.requires_grad:
                (loss * weight).backward()
            losses += [] if loss is None else [loss.detach() * weight]
            keep_inputs(values, (args, kwargs))
    if losses:
        values.put("loss", "loss", torch.stack(losses).sum())
    _keep_updates(values, module)
    return values


def _keep_updates(values: Values, module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            values.put("gradient", name, parameter.grad.detach().clone())
    trained = [parameter for parameter in parameters.values() if parameter.requires_grad]
    if trained:
        torch.optim.SGD(trained, lr=RATE).step()
    for name, parameter in parameters.items():
        values.put("parameter", name, parameter.detach())
    for name, buffer in module.named_buffers():
        values.put("buffer", name, buffer.detach())


def _keep_outputs(values: Values, names: Sequence[str], results: Sequence[Any]) -> None:
    for name, result in zip(names, results, strict=True):
        if isinstance(result, Tensor):
            values.put("output", name, result.detach().clone())


def keep_inputs(values: Values, call: Arguments) -> None:
    """The gradients of inputs that require one."""
    for at, tensor in enumerate(x for x in pytree.tree_leaves(call) if isinstance(x, Tensor)):
        if tensor.requires_grad and tensor.grad is not None:
            values.put("gradient", f"input {at}", tensor.grad.detach().clone())


def fresh(call: Arguments) -> Arguments:
    """The same with tensors of their own, which may be changed and get gradients."""
    copied: Arguments = pytree.tree_map_only(
        Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), call
    )
    return copied


def leaves_of(results: Any) -> list[Any]:
    return pytree.tree_leaves(results)


def loss_of(results: Sequence[Any]) -> Tensor | None:
    """The only scalar of a model's results."""
    losses = [x for x in results if is_loss(x)]
    return losses[0] if losses else None


def is_loss(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 0 and x.is_floating_point()


def sum_of(results: Sequence[Any]) -> Tensor | None:
    """A scalar that depends on every element of every result in its own way."""
    sums = [
        _weighted(x, at) for at, x in enumerate(results) if isinstance(x, Tensor) and x.is_floating_point()
    ]
    return torch.stack(sums).sum() if sums else None


def _weighted(output: Tensor, index: int) -> Tensor:
    flat = output.to(torch.float64).flatten()
    places = torch.arange(flat.numel(), dtype=torch.float64, device=flat.device)
    return (flat * torch.cos(places + index)).sum() / max(1, flat.numel()) ** 0.5
