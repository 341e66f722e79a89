"""`hf:CLASS:config.json`: any model of Transformers, from its config, on meta, with an example."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RuntimeFault
from ..support.example_sizes import require_sizes
from ..support.suggestions import did_you_mean

BATCH, SEQUENCE = 8, 128


def from_config(
    name: str, batch: int = BATCH, sequence: int | None = None, device: str = "meta"
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A module in training mode, and the arguments of a call with labels, which are on meta. On another
    device the module has the weights of its own initialisation."""
    parts = name.split(":", 2)
    if len(parts) != 3 or not all(parts):
        raise _no_model(f"{name} names no model", "it is not of the form hf:CLASS:config.json")
    _, kind, path = parts
    model_class = _class(kind)
    _require_fitting(kind, model_class.config_class, path)
    try:
        config = model_class.config_class.from_json_file(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _no_model(f"{path} is no config of {kind}", why) from None
    longest = _longest(config)
    if sequence is None:
        sequence = min(SEQUENCE, longest or SEQUENCE)
    require_sizes(kind, batch, sequence, longest)
    return _made(model_class, config, path, batch, sequence, device)


def of_class(
    kind: str,
    config: Mapping[str, Any],
    name: str,
    batch: int,
    sequence: int | None,
    device: str = "meta",
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The same from a config that is no file, in the dtype that is the default."""
    model_class = _class(kind)
    try:
        made = model_class.config_class(**config)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise _no_model(f"{kind} does not take the config of {name}", why, _newer()) from error
    return _made(model_class, made, name, batch, sequence or SEQUENCE, device)


def _made(
    model_class: Any, config: Any, name: str, batch: int, sequence: int, device: str
) -> tuple[nn.Module, dict[str, Tensor]]:
    if hasattr(config, "use_cache"):
        config.use_cache = False
    try:
        with torch.device(device):
            module: nn.Module = model_class(config)
    except Exception as error:
        what = f"{model_class.__name__} cannot be made from {name}"
        raise _no_model(what, f"{type(error).__name__}: {error}") from error
    return module.train(), _example(module, config, batch, sequence)


def _longest(config: Any) -> int | None:
    longest: int | None = _first(config, ("max_position_embeddings", "n_positions"))
    return longest


def _class(kind: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        what = f"{kind} is a class of Transformers, which is not installed"
        raise _no_model(what, str(error), "install it: pip install transformers") from None
    model_class = getattr(transformers, kind, None)
    if (
        not isinstance(model_class, type)
        or not issubclass(model_class, nn.Module)
        or not getattr(model_class, "config_class", None)
    ):
        why = f"`transformers.{kind}` is not a class of models"
        raise _no_model(f"Transformers has no model {kind}", why, _class_like(kind, transformers))
    return model_class


def _class_like(kind: str, transformers: Any) -> str | None:
    """Configs and tokenizers are in the way of what was meant."""
    others = ("Config", "Tokenizer", "TokenizerFast", "Processor", "Output", "Mixin", "Extractor")
    models = [name for name in dir(transformers) if name[:1].isupper() and not name.endswith(others)]
    return did_you_mean(kind, models) or None


def _require_fitting(kind: str, config_class: Any, path: str) -> None:
    """Of a config of another class every number that it lacks would be this class's default."""
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _no_model(f"{path} is no config of {kind}", why) from None
    given = given if isinstance(given, dict) else {}
    wanted, stated = config_class.model_type, given.get("model_type")
    if stated is None:
        known = config_class()
        unknown = [key for key in given if not hasattr(known, key) and not key.startswith(("_", "torch_"))]
        if unknown:
            fix = did_you_mean(unknown[0], vars(known), f"`{unknown[0]}`: ") or None
            what = f"{path} is no config of {kind}"
            raise _no_model(what, f"{config_class.__name__} has no {', '.join(unknown[:3])}", fix)
    elif stated != wanted:
        raise _no_model(
            f"{path} is no config of {kind}",
            f"its model_type is `{stated}`, that of {kind} is `{wanted}`",
            _class_for(given.get("architectures"), stated, path),
        )


def _class_for(architectures: Any, model_type: str, path: str) -> str:
    if isinstance(architectures, list) and architectures:
        return f"name the class that it is for: hf:{architectures[0]}:{path}"
    return f"name a class of Transformers that is made from a config of type `{model_type}`"


def _example(module: Any, config: Any, batch: int, sequence: int) -> dict[str, Tensor]:
    """What the model's main input is says what it is given."""
    meta = torch.device("meta")
    name = module.main_input_name
    if name == "input_ids":
        given = torch.zeros(batch, sequence, dtype=torch.long, device=meta)
    elif name == "pixel_values":
        size = _first(config, ("image_size",)) or 224
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        shape = (batch, _first(config, ("num_channels",)) or 3, height, width)
        given = torch.zeros(shape, dtype=module.dtype, device=meta)
    elif name == "input_features":
        heard = (batch, config.num_mel_bins, 2 * config.max_source_positions)
        given = torch.zeros(heard, dtype=module.dtype, device=meta)
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


def _newer() -> str:
    return "install a newer Transformers: pip install --upgrade transformers"


def _no_model(what: str, why: str, fix: str | None = None) -> RuntimeFault:
    usual = "name a class of Transformers and the file of its config, such as hf:LlamaForCausalLM:config.json"
    return RuntimeFault("SW0770", what, why=why, fix=fix or usual)
