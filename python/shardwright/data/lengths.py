"""Batches padded to a few lengths, so that few programs serve them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..errors import CaptureError
from ..support.suggestions import did_you_mean


def pad_to(
    batch: Any, lengths: int | Sequence[int], values: Mapping[str | int, float], *, dim: int = 1
) -> Any:
    """The batch with these of its tensors filled up along `dim` to the next of some lengths.

    `values` says which tensors, by name or position, and with what each is filled: -100 for labels
    that a loss ignores, 0 for a mask. The others stay as they are. The result is equal to that of the
    batch as it was where the model sees nothing of what is filled in: docs/how-to/lengths.md says when.
    """
    allowed = sorted_lengths(lengths)
    items = _items(batch)
    for name in values:
        if not isinstance(items.get(name), Tensor):
            raise not_there(
                str(name), [str(key) for key, value in items.items() if isinstance(value, Tensor)]
            )
    made = {name: filled(name, items[name], allowed, values[name], dim) for name in values}
    return _like(batch, {**items, **made})


def not_there(name: str, known: Sequence[str]) -> CaptureError:
    return CaptureError(
        "SW0156",
        f"the batch has no tensor {name!r} to pad",
        why=f"its tensors are {', '.join(known) or 'none'}",
        fix=did_you_mean(name, known) or "name in `values` the tensors to pad, and no others",
    )


def sorted_lengths(lengths: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({lengths} if isinstance(lengths, int) else set(lengths)))


def filled(name: str | int, tensor: Tensor, allowed: Sequence[int], value: float, dim: int) -> Tensor:
    """A tensor up to the next of these lengths."""
    size = tensor.shape[dim] if -tensor.dim() <= dim < tensor.dim() else None
    wanted = None if size is None else next((length for length in allowed if length >= size), None)
    if size is None or wanted is None:
        longest = f"the longest of the lengths is {allowed[-1]}" if allowed else "there are no lengths"
        why, fix = longest, "cut the batch, or give a longer length, too"
        if size is None:
            why, fix = "it has no such dim", "give a `dim` that it has"
        raise CaptureError(
            "SW0157",
            f"{name!r} is {list(tensor.shape)} and cannot be padded along dim {dim}",
            why=why,
            fix=fix,
        )
    behind = tensor.dim() - 1 - dim % tensor.dim()
    return F.pad(tensor, [0, 0] * behind + [0, wanted - size], value=value)


def _items(batch: Any) -> dict[str | int, Any]:
    if isinstance(batch, Mapping) or hasattr(batch, "keys"):
        return {key: batch[key] for key in batch.keys()}  # noqa: SIM118
    return dict(enumerate(batch if isinstance(batch, (tuple, list)) else [batch]))


def _like(batch: Any, items: Mapping[str | int, Any]) -> Any:
    """A dict where names were given, also of a class such as `BatchEncoding`."""
    if isinstance(batch, Tensor):
        return items[0]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*items.values())
    return type(batch)(items.values()) if isinstance(batch, (tuple, list)) else dict(items)
