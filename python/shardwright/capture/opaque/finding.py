"""Which modules are not traced: those of which the user says so, and the smallest ones that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...errors import CaptureError
from ..lines import is_placed, place_in
from ..state.swap import same_randomness
from ..verify.against_module import Call, fails, forward
from .modules import UNFIT, Given, Opaque, around, is_function, marked, refusal, unfit
from .noting import Noted, noting
from .plain import function_at

# What a module may do where it runs as it is.
_HEALED = {"SW0101", "SW0102", "SW0103", "SW0104", "SW0132", "SW0139"}
# Of integers fewer than these are sizes and counts, as likely as not.
_FEW = 16
_SEED = 5678
Values = Callable[[], AbstractContextManager[Call | str]]
T = TypeVar("T")


def traced_around(
    module: nn.Module,
    values: Values,
    trace: Callable[[Opaque], T],
    helps: Callable[[CaptureError], bool] = lambda error: False,
) -> tuple[T, Opaque]:
    """What `trace` makes of the model, and what stays as it is for that. `values` is a call to run, and
    `helps` says whether after an error it may go otherwise."""
    opaque, reason = marked(module), None
    while True:
        try:
            if opaque.why:
                _learn(module, values, opaque)
            return trace(opaque), opaque
        except CaptureError as error:
            if name := getattr(error, UNFIT, None):
                opaque.unfit.add(name)
                opaque.why.pop(name, None)
                continue
            if helps(error):
                continue
            if error.code == "SW0139" and not is_placed(error):
                raise
            # Where a module cannot run as it is, the one around it has the reason of the one inside.
            reason = reason if reason and error.code == "SW0139" else error
            path = _unit_of(error, opaque)
            if error.code not in _HEALED or path is None or path in opaque.why:
                raise reason from None
            for other in _alike(module, path):
                opaque.add(other, _said(reason))


def _unit_of(error: CaptureError, opaque: Opaque) -> str | None:
    """The function that it arose in, if that may be an operator, else the module."""
    name = function_at(error)
    return place_in(error) if name is None or name in opaque.unfit else name


def _alike(module: nn.Module, path: str) -> list[str]:
    """A function; or a module, and all of its class: layers are alike."""
    if is_function(path):
        return [path]
    kind = type(module.get_submodule(path))
    if kind.__module__.startswith("torch.nn"):
        return [path]
    return [other for other, part in module.named_modules() if type(part) is kind and other]


def _said(error: CaptureError) -> str:
    why = f": {error.why}" if error.code == "SW0101" and error.why else ""
    return error.what + (f" ({error.place})" if error.place else "") + why


def _learn(module: nn.Module, values: Values, opaque: Opaque) -> None:
    """What the modules give."""
    with values() as call:
        if isinstance(call, str):
            path, why = next(iter(opaque.why.items()))
            unknown = f"{why}; and its results are not known: {call}"
            raise refusal(path, unknown, "capture the model with values, or a smaller copy of it")
        noted = _noted(call, opaque)
        other = _noted_otherwise(call, opaque)
    opaque.given, opaque.operations = noted.given, noted.shares
    for path, calls in noted.given.items():
        opaque.given[path] = calls if other is None else _merged(module, path, calls, other.given[path])


def _merged(module: nn.Module, path: str, calls: list[Given], others: list[Given]) -> list[Given]:
    merged = [one.merged(other) for one, other in zip(calls, others, strict=False)]
    if len(calls) != len(others) or None in merged:
        why = f"the sizes of the results of `{path}` depend on data"
        raise unfit(path, why) if is_function(path) else around(module, path, why)
    return [one for one in merged if one is not None]


def _noted(call: Call, opaque: Opaque) -> Noted:
    try:
        with same_randomness(), torch.enable_grad(), noting(call.module, opaque.why) as noted:
            forward(call)
    except CaptureError:
        raise
    except Exception as error:
        raise fails(error) from error
    return noted


def _noted_otherwise(call: Call, opaque: Opaque) -> Noted | None:
    """The same with other data, where the model takes it."""
    generator = torch.Generator().manual_seed(_SEED)

    def mixed(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() and tensor.numel() < _FEW:
            return tensor
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        return tensor.detach().flatten()[order].reshape(tensor.shape).requires_grad_(tensor.requires_grad)

    args, kwargs = pytree.tree_map_only(Tensor, mixed, (call.bound.args, call.bound.kwargs))
    other = Call(call.module, call.bound.signature.bind(*args, **kwargs), call.casting)
    try:
        return _noted(other, opaque)
    except CaptureError:
        return None
