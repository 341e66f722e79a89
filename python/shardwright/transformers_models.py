"""`hf:CLASS:config.json`: any model of Transformers, from its config, on meta, with an example."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .errors import RuntimeFault


def from_config(name: str, batch: int = 8, sequence: int = 128) -> tuple[nn.Module, dict[str, Tensor]]:
    """A module in training mode, without weights, and the arguments of a call with labels."""
    parts = name.split(":", 2)
    if len(parts) != 3 or not all(parts):
        raise _no_model(f"{name} names no model", "it is not of the form hf:CLASS:config.json")
    _, kind, path = parts
    found = _class(kind)
    try:
        config = found.config_class.from_json_file(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _no_model(f"{path} is no config of {kind}", why) from None
    if hasattr(config, "use_cache"):
        config.use_cache = False
    try:
        with torch.device("meta"):
            module: nn.Module = found(config)
    except Exception as error:
        raise _no_model(f"{kind} cannot be made from {path}", f"{type(error).__name__}: {error}") from error
    return module.train(), _example(module, config, batch, sequence)


def _class(kind: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise _no_model("hf: names a model of Transformers, which is not installed", str(error)) from None
    found = getattr(transformers, kind, None)
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise _no_model(f"Transformers has no model {kind}", f"`transformers.{kind}` is no class of models")
    return found


def _example(module: Any, config: Any, batch: int, sequence: int) -> dict[str, Tensor]:
    """What the model's main input is says what it is given."""
    sequence = min(sequence, _first(config, ("max_position_embeddings", "n_positions")) or sequence)
    meta = torch.device("meta")
    name = module.main_input_name
    if name == "input_ids":
        given = torch.zeros(batch, sequence, dtype=torch.long, device=meta)
    elif name == "pixel_values":
        size = _first(config, ("image_size",)) or 224
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        given = torch.zeros(batch, _first(config, ("num_channels",)) or 3, height, width, device=meta)
    elif name == "input_features":
        given = torch.zeros(batch, config.num_mel_bins, 2 * config.max_source_positions, device=meta)
    else:
        raise RuntimeFault(
            "SW0771",
            f"it is not known what to give {type(module).__name__}",
            why=f"its main input is `{name}`; known are input_ids, pixel_values and input_features",
            fix="write a function that returns the model and its example, and name it as FILE.py:FUNCTION",
        )
    return {name: given, **_labels(module, config, name, batch, sequence)}


def _labels(module: Any, config: Any, name: str, batch: int, sequence: int) -> Mapping[str, Tensor]:
    if "labels" not in inspect.signature(module.forward).parameters:
        return {}
    one = name == "pixel_values" or "SequenceClassification" in type(module).__name__
    if name == "input_features":
        sequence = min(sequence, config.max_target_positions)
    shape = (batch,) if one else (batch, sequence)
    return {"labels": torch.zeros(shape, dtype=torch.long, device="meta")}


def _first(config: Any, names: tuple[str, ...]) -> Any:
    return next((getattr(config, name) for name in names if getattr(config, name, None)), None)


def _no_model(what: str, why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0770",
        what,
        why=why,
        fix="name a class of Transformers and the file of its config, such as"
        " hf:LlamaForCausalLM:config.json",
    )
