"""Models of Transformers come with settings that a graph cannot follow: capture works around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import zoo
from shardwright.capture import capture
from shardwright.errors import CaptureError

torch.set_num_threads(1)

MODELS: dict[str, Any] = {"llama": zoo.llama, "t5": zoo.t5, "whisper": zoo.whisper}
SAID = "the model is captured with `use_cache` off: there is no cache of keys and values"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_cache_of_keys_and_values_is_left_out(name: str) -> None:
    module, args, kwargs = MODELS[name]()
    plain = capture(module, args, kwargs)
    assert plain.notes == []
    for part in module.modules():
        if hasattr(part, "config"):
            part.config.use_cache = True
    captured = capture(module, args, kwargs)
    assert captured.graph_text == plain.graph_text
    assert captured.notes == [SAID]
    assert captured.verified
    assert module.config.use_cache is True
    assert name == "t5" or module(*args, **kwargs).past_key_values is not None


def test_a_call_that_asks_for_the_cache_is_refused() -> None:
    module, args, kwargs = zoo.llama()
    with pytest.raises(CaptureError) as refused:
        capture(module, args, {**kwargs, "use_cache": True})
    assert str(refused.value) == (
        "error[SW0125]: the call asks for a cache of keys and values\n"
        "  why: a cache grows with each call, and a program has one shape\n"
        "  help: leave out `use_cache=True`"
    )
    assert capture(module, args, {**kwargs, "use_cache": False}).verified
