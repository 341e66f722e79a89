"""Parts of parameters that are handed to safetensors under the model's names, where they would load nowhere.

Its functions that write ask one helper to lay out what they are given, also those that were imported long
before; its name depends on the version. State dicts and pickles are refused where they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import safetensors.torch

from ...errors import RuntimeFault
from .collective_guard import replace
from .own_memory import own_parts_among

HELPERS = ("_flatten", "_flatten_as_ptr")


def refuse_files_of_parts() -> None:
    """From now on."""
    for name in HELPERS:
        if hasattr(safetensors.torch, name):
            replace(safetensors.torch, name, _writes)


def _writes(original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    for part in own_parts_among(tensors.values() if isinstance(tensors, Mapping) else ()):
        raise RuntimeFault(
            "SW0800",
            f"this rank's part of a parallel model is written to a file: {part}",
            why="the plan shards the model: under the model's names a shard would be read as the whole",
            fix="`sw.save_safetensors(model, folder)` on every rank, or `full ="
            " model.full_state_dict(rank0_only=True, cpu=True)` on every rank and `save_file(full, path)` on"
            " rank 0",
        )
    return original(tensors, *args, **kwargs)
