"""Inputs that are named as known: a program is for what a model reads of their values."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from ...errors import CaptureError
from ...precision import dtype_name
from ..state.memory import has_no_value

# For all that has values.
ALL = "*"
# Names, or nothing for whatever turns out to be needed.
KnownInputs = str | Sequence[str] | None
READS_DATA = "the model reads the value of a tensor in Python"
# Numbers that are told one by one.
_MOST_LISTED = 64


def asked_for(names: KnownInputs, inputs: str) -> tuple[str, ...] | None:
    """The names as the user gives them, for ranks that are given the whole batch or parts of it."""
    if names is None:
        return () if inputs == "local" else None
    names = (names,) if isinstance(names, str) else tuple(names)
    if names and inputs == "local":
        why = "each rank is given its own part of the batch, so no rank knows the whole"
        raise _not_known(names[0], 'inputs="local"', why, "give every rank the whole batch")
    return names


def known_among(named: list[tuple[str, Any]], wanted: str | Sequence[str]) -> set[str]:
    """Which leaves are meant by names: of an argument, or of a tensor in it, as a person calls them."""
    tensors = {name: leaf for name, leaf in named if isinstance(leaf, Tensor)}
    if ALL in wanted:
        return {name for name, tensor in tensors.items() if not has_no_value(tensor)}
    names: set[str] = set()
    for one in (wanted,) if isinstance(wanted, str) else wanted:
        matching = [name for name in tensors if one in _called(name)]
        if not matching:
            why = f"the call has {', '.join(f'`{name}`' for name in tensors) or 'no tensors'}"
            raise _not_known(one, "no tensor of the call has this name", why, "name one of these")
        for name in matching:
            _require_known(name, tensors[name])
        names.update(matching)
    return names


def _called(name: str) -> set[str]:
    """The names of an input: its own, that of the argument which it is in, and its key in `**kwargs`."""
    argument, bracket, rest = name.partition("[")
    key = rest.partition("]")[0].strip("'") if bracket else argument
    return {name, argument, key}


def _require_known(name: str, tensor: Tensor) -> None:
    if has_no_value(tensor):
        raise _not_known(name, "it has no values", "it is on meta, or a fake", "capture with real tensors")


def require_whole(name: str, tensor: Tensor, lost: str) -> None:
    """Where it is not known what is read of a tensor, a program is for all that it holds."""
    if tensor.is_floating_point() or tensor.is_complex():
        why = f"it holds {dtype_name(tensor.dtype)}, and a program would be for exactly these numbers"
        raise _not_known(name, _lost(lost), why, "leave it out")


def not_noted(name: str, lost: str) -> CaptureError:
    """Where nobody asks for it, no program is for all that inputs hold."""
    why = "a program would be for exactly these values, and each batch has others"
    return _not_known(name, _lost(lost), why, "name inputs that rarely change: `known_inputs=[...]`")


def _lost(call: str) -> str:
    return f"what `{call}` reads of it cannot be written down"


def _not_known(name: str, what: str, why: str, fix: str) -> CaptureError:
    return CaptureError("SW0146", f"`{name}` cannot be a known input: {what}", why=why, fix=fix)


def values_of(tensor: Tensor) -> str:
    """All that a tensor holds; of many numbers a digest."""
    if has_no_value(tensor):
        return "no values"
    now = tensor.detach().cpu()
    if now.is_complex():
        now = torch.view_as_real(now.resolve_conj())
    if now.numel() <= _MOST_LISTED:
        return json.dumps(now.tolist())
    return f"{dtype_name(now.dtype)}{list(now.shape)} {sha256(_bytes(now)).hexdigest()}"


def _bytes(tensor: Tensor) -> bytes:
    """Its memory; there may be no NumPy, through which tensors else give theirs."""
    plain = tensor.resolve_neg().contiguous()
    return ctypes.string_at(plain.data_ptr(), plain.nbytes)


def said_of_known(names: Sequence[str], *, whole: bool) -> list[str]:
    """A note."""
    if not names:
        return []
    listed = ", ".join(f"`{name}`" for name in names)
    what = f"the values of {listed}" if whole else f"what the model reads of {listed}"
    return [f"the program is for {what}: other calls get programs of their own"]


def advice_to_know(reasons: Sequence[str], *, noticed: bool) -> list[str]:
    """A note, where data is read and nothing could be known; `noticed` is whether it was looked for."""
    if not any(why.startswith(READS_DATA) for why in reasons):
        return []
    how = "give the example with values" if noticed else "leave out `known_inputs=()`"
    return [f"what it reads may be known if it follows from inputs: {how}"]
