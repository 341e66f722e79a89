"""What two runs gave, and the first difference between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_TOLERANCE = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
}
_COARSE = 2e-2
# Elements that are looked at in float64 at once.
_PIECE = 2**20


@dataclass
class Results:
    """What one run gave, by the names that people know."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)


def with_gradients(
    results: Results,
    outputs: Sequence[Tensor | None],
    parameters: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
) -> None:
    """Adds outputs, and the gradients of a scalar that depends on all of them, if there are gradients."""
    for index, output in enumerate(outputs):
        if output is not None:
            results.outputs[f"output {index}"] = output.detach()
    if not torch.is_grad_enabled():
        return
    wanted: dict[str, Tensor] = {}
    wanted |= {f"the gradient of parameter `{n}`": p for n, p in parameters.items()}
    wanted |= {f"the gradient of input {i}": t for i, t in enumerate(inputs)}
    wanted = {name: tensor for name, tensor in wanted.items() if tensor.requires_grad}
    learning = [o if o is not None and o.requires_grad else None for o in outputs]
    tensors = list(wanted.values())
    given: Sequence[Tensor | None] = [None] * len(tensors)
    if tensors and any(output is not None for output in learning):
        given = torch.autograd.grad(weighted_sum(learning), tensors, allow_unused=True)
    for (name, tensor), gradient in zip(wanted.items(), given, strict=True):
        results.gradients[name] = torch.zeros_like(tensor) if gradient is None else gradient.to_dense()


def weighted_sum(outputs: Sequence[Tensor | None]) -> Tensor:
    """A scalar that depends on all of them, of which there is one."""
    terms = [_weighted(output, at) for at, output in enumerate(outputs) if output is not None]
    return torch.stack([term.to(terms[0].device) for term in terms]).sum()


def _weighted(output: Tensor, index: int) -> Tensor:
    """A scalar that depends on every element in its own way."""
    real = torch.view_as_real(output) if output.is_complex() else output
    scalar: Tensor = _Weighted.apply(real.reshape(-1), index)  # type: ignore[no-untyped-call]
    return scalar


class _Weighted(torch.autograd.Function):
    """In float64, of which there are never more than a piece: logits may be most of a model's memory."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, index: int) -> Tensor:
        ctx.index, ctx.kind = index, (flat.numel(), flat.dtype, flat.device)
        sums = [part.to(torch.float64) @ _weights(part, at + index) for at, part in _pieces(flat)]
        return torch.stack(sums).sum() if sums else flat.new_zeros((), dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        elements, dtype, device = ctx.kind
        random = torch.empty(elements, dtype=dtype, device=device)
        for at, part in _pieces(random):
            part.copy_(_weights(part, at + ctx.index).mul_(gradient))
        return random, None


def _weights(part: Tensor, start: int) -> Tensor:
    places = torch.arange(start, start + part.numel(), dtype=torch.float64, device=part.device)
    return places.cos_()


def _pieces(flat: Tensor) -> Iterator[tuple[int, Tensor]]:
    """With where each begins."""
    for at in range(0, flat.numel(), _PIECE):
        yield at, flat[at : at + _PIECE]


def first_difference(captured: Results, expected: Results) -> str | None:
    for kind in ("outputs", "buffers", "gradients"):
        ours, theirs = getattr(captured, kind), getattr(expected, kind)
        if list(ours) != list(theirs):
            return f"the {kind} are {', '.join(ours)}, not {', '.join(theirs)}"
        scale = _scale(list(theirs.values()))
        for name, tensor in theirs.items():
            label = f"buffer `{name}`" if kind == "buffers" else name
            difference = _difference(ours[name], tensor, scale)
            if difference is not None:
                return f"{label} {difference}"
    return None


def _scale(tensors: list[Tensor]) -> float:
    """The root mean square of the norms, so that a gradient that is mathematically zero is fine."""
    norms = [_norm(t) ** 2 for t in tensors if t.is_floating_point() or t.is_complex()]
    return (sum(norms) / len(norms)) ** 0.5 if norms else 0.0


def _difference(ours: Tensor, theirs: Tensor, scale: float) -> str | None:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"is {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return None if torch.equal(ours, theirs) else "differs"
    error = _norm_of_difference(ours, theirs)
    bound = _TOLERANCE.get(theirs.dtype, _COARSE) * max(_norm(theirs), 1e-3 * scale)
    if error <= bound:
        return None
    return f"differs by {error:.1e}, more than {bound:.1e}"


def _norm_of_difference(ours: Tensor, theirs: Tensor) -> float:
    """Of elements that are the same, infinite ones too, it is zero."""
    norms, flat = [], ours.detach().reshape(-1)
    for at, other in _pieces(theirs.detach().reshape(-1)):
        one = flat[at : at + _PIECE]
        same = (one == other) | (one.isnan() & other.isnan())
        norms.append(_wide_norm(torch.where(same, torch.zeros_like(one), one - other)))
    return math.hypot(*norms)


def _norm(tensor: Tensor) -> float:
    """Of its finite elements."""
    parts = (part for _, part in _pieces(tensor.detach().reshape(-1)))
    return math.hypot(*(_wide_norm(torch.where(p.isfinite(), p, torch.zeros_like(p))) for p in parts))


def _wide_norm(part: Tensor) -> float:
    wide = part.to(torch.complex128 if part.is_complex() else torch.float64)
    return float(torch.linalg.vector_norm(wide))
