"""Settings in a model's config that are other while it is captured, and as before afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch import nn

from ..errors import CaptureError
from .static_inputs.static_evaluation import is_known

_CACHE = "use_cache"
_EXPERTS = "_experts_implementation"
_CAPTURED = "batched_mm"
_EXPORTING = "is_torchdynamo_exporting"


@contextmanager
def without_cache(module: nn.Module, call: Mapping[str, Any]) -> Iterator[None]:
    """For a while, a model of Transformers gives no cache of keys and values, as it does by default: that
    is an object of its own, which grows with each call."""
    if call.get(_CACHE) is True:
        raise CaptureError(
            "SW0125",
            "the call asks for a cache of keys and values",
            why="a cache grows with each call, and a program has one shape",
            fix=f"leave out `{_CACHE}=True`",
        )
    with _other(_caching(module), _CACHE, False):
        yield


@contextmanager
def capturable_experts(module: nn.Module) -> Iterator[None]:
    """For a while, each token is multiplied with the matrices of its own experts: of the ways in which
    Transformers computes experts, the one whose graph does not depend on the tokens."""
    configs = _with_experts(module)
    # The property of that name would set those of other configs too.
    name = _EXPERTS + "_internal"
    with (
        _other([c for c in configs if hasattr(c, name)], name, _CAPTURED),
        _other([c for c in configs if not hasattr(c, name)], _EXPERTS, _CAPTURED),
    ):
        yield


@contextmanager
def masks_as_they_run() -> Iterator[None]:
    """For a while, masks are left to the attention as they are where nothing is traced, if padding is known.
    Transformers makes them while tracing, also for attention that is not causal by itself."""
    masking: Any = sys.modules.get("transformers.masking_utils")
    with ExitStack() as stack:
        for name, as_it_runs in _AS_IT_RUNS.items():
            if hasattr(masking, name) and hasattr(masking, _EXPORTING):
                running = as_it_runs(masking, getattr(masking, name))
                stack.enter_context(mock.patch.object(masking, name, running))
        yield


def _skips(masking: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def skips(padding_mask: Any, *args: Any, **kwargs: Any) -> Any:
        if padding_mask is not None and not is_known(padding_mask):
            return original(padding_mask, *args, **kwargs)
        with mock.patch.object(masking, _EXPORTING, lambda: False):
            return original(padding_mask, *args, **kwargs)

    return skips


def _is_tracing(_: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tensor=None: not (tensor is not None and is_known(tensor)) and original(tensor)


# Of the masks of Transformers: where one may be left out, and where it asks whether it may look into it.
_AS_IT_RUNS = {
    "_ignore_causal_mask_sdpa": _skips,
    "_ignore_bidirectional_mask_sdpa": _skips,
    "is_tracing": _is_tracing,
}


def notes(module: nn.Module) -> list[str]:
    """What is captured otherwise than it runs without us. Call it while the settings are the model's."""
    ways = sorted({str(getattr(config, _EXPERTS)) for config in _with_experts(module)})
    said = [f"experts are captured as `{_CAPTURED}`, which computes the same as `{way}`" for way in ways]
    if _caching(module):
        said.append(f"the model is captured with `{_CACHE}` off: there is no cache of keys and values")
    return said


@contextmanager
def _other(configs: list[Any], name: str, value: Any) -> Iterator[None]:
    saved = [(config, getattr(config, name)) for config in configs]
    try:
        for config in configs:
            setattr(config, name, value)
        yield
    finally:
        for config, before in saved:
            setattr(config, name, before)


def _caching(module: nn.Module) -> list[Any]:
    cached = {id(c): c for c, _ in _configs(module) if getattr(c, _CACHE, None) is True}
    return list(cached.values())


def _with_experts(module: nn.Module) -> list[Any]:
    """The configs of experts that are computed in another way than the one that is captured."""
    configs: dict[int, Any] = {}
    for config, part in _configs(module):
        is_experts = hasattr(part, "is_transposed") and hasattr(part, "has_gate")
        if is_experts and getattr(config, _EXPERTS, _CAPTURED) != _CAPTURED:
            configs.setdefault(id(config), config)
    return list(configs.values())


def _configs(module: nn.Module) -> list[tuple[Any, nn.Module]]:
    parts = ((getattr(part, "config", None), part) for part in module.modules())
    return [(config, part) for config, part in parts if config is not None]
