"""The config of a type, made small in some way."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from .shrinking import Config, Way, each_part, shrunk

_NOT_OURS = ("transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype")
_LABELS = ("id2label", "label2id")
TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}


def config_of(name: str, way: Way) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[name]
    pair = _pair(name)
    config = json.loads(json.dumps((config_class() if pair is None else pair).to_dict()))
    for key in _NOT_OURS:
        config.pop(key, None)
    if pair is None:
        shrunk(config, way)
        if _has_sections(config_class):
            each_part(config, _fit_sections)
    if "id2label" in config:
        config["num_labels"] = 3
    each_part(config, _strip)
    config.pop("model_type", None)
    made = config_class(**config)
    without_cache(made)
    return made


def fitting(config: Any, model_class: Any) -> Any:
    """Of a type of several parts the part that a class is made from."""
    wanted = getattr(model_class, "config_class", None)
    if wanted is None or isinstance(config, wanted):
        return config
    parts = (getattr(config, name, None) for name in getattr(config, "sub_configs", None) or {})
    return next((part for part in parts if isinstance(part, wanted)), config)


def _strip(part: Config) -> None:
    for key in (*_NOT_OURS, *_LABELS):
        part.pop(key, None)


def without_cache(config: Any) -> None:
    if hasattr(config, "use_cache"):
        try:
            config.use_cache = False
        except Exception:
            return
    for name in getattr(config, "sub_configs", None) or {}:
        inner = getattr(config, name, None)
        if hasattr(inner, "to_dict"):
            without_cache(inner)


def _pair(name: str) -> Any:
    """Types that are made of two others, and have no config without these."""
    import transformers as hf

    decoder = {"is_decoder": True, "add_cross_attention": True, "vocab_size": 1024}
    if name == "encoder-decoder":
        text = hf.BertConfig(**TINY, vocab_size=1024)
        return hf.EncoderDecoderConfig.from_encoder_decoder_configs(text, hf.BertConfig(**TINY, **decoder))
    if name == "vision-encoder-decoder":
        image = hf.ViTConfig(image_size=64, **TINY)
        return hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
            image, hf.BertConfig(**TINY, **decoder)
        )
    if name == "speech-encoder-decoder":
        sound = hf.Wav2Vec2Config(**TINY)
        return hf.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(
            sound, hf.BertConfig(**TINY, **decoder)
        )
    if name == "vision-text-dual-encoder":
        image, text = hf.ViTConfig(image_size=64, **TINY), hf.BertConfig(**TINY, vocab_size=1024)
        return hf.VisionTextDualEncoderConfig.from_vision_text_configs(image, text)
    return None


def _has_sections(config_class: Any) -> bool:
    """Whether its positions are divided among time, height and width."""
    module = importlib.import_module(config_class.__module__)
    name = "modeling_" + config_class.__module__.split("configuration_")[-1] + ".py"
    file = Path(module.__file__ or "").parent / name
    return file.is_file() and "mrope_section" in file.read_text(encoding="utf-8")


def _fit_sections(part: Config) -> None:
    rope, heads = part.get("rope_parameters"), part.get("num_attention_heads")
    if not isinstance(rope, dict) or not heads:
        return
    width = part.get("head_dim") or part["hidden_size"] // heads
    inner = [entry for entry in rope.values() if isinstance(entry, dict)]
    for entry in inner or [rope]:
        share = entry.get("partial_rotary_factor", part.get("partial_rotary_factor") or 1.0)
        half = int(width * share) // 2
        entry["mrope_section"] = [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8]
