"""What an example has to know of a config, and of what the model's forward takes."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...built import BATCH

TIME = 16
SHORT = 8
"""Tokens of a decoder."""
_PARTS = (
    "vision_config",
    "backbone_config",
    "encoder",
    "text_config",
    "audio_config",
    "decoder",
    "perception_encoder",
)
_SPECIAL = re.compile(r"(token_id|token_index|token)$")


@dataclass
class About:
    """A model, and numbers drawn for it from one seed."""

    module: nn.Module
    config: Any
    kind: str
    task: str

    def __post_init__(self) -> None:
        self.takes = set(inspect.signature(self.module.forward).parameters)
        self.generator = torch.Generator().manual_seed(0)
        self.main = getattr(self.module, "main_input_name", "input_ids")
        size = self.find("vocab_size", default=1000)
        inner = getattr(getattr(self.config, "text_config", None), "vocab_size", size)
        self.vocabulary = min(size, inner) if isinstance(inner, int) else size
        special = _special(self.config.to_dict())
        plain = [token for token in range(4, min(self.vocabulary, 4000)) if token not in special]
        self._plain = torch.tensor(plain or list(range(max(1, min(self.vocabulary, 10)))))

    def find(self, *names: str, default: Any = None) -> Any:
        value = find(self.config, *names)
        return default if value is None else value

    def number(self, *names: str, default: int) -> int:
        value = self.find(*names)
        return value if isinstance(value, int) else default

    def tokens(self, *shape: int) -> Tensor:
        return self._plain[torch.randint(len(self._plain), shape, generator=self.generator)]

    def whole(self, most: int, *shape: int, least: int = 0) -> Tensor:
        return torch.randint(least, max(most, least + 1), shape, generator=self.generator)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def text(self) -> dict[str, Tensor]:
        """What a model of text is given; nothing for others."""
        inputs: dict[str, Tensor] = {}
        if "input_ids" in self.takes:
            inputs["input_ids"] = self.tokens(BATCH, TIME)
            if "attention_mask" in self.takes:
                inputs["attention_mask"] = torch.ones(BATCH, TIME, dtype=torch.long)
        if "decoder_input_ids" in self.takes:
            inputs["decoder_input_ids"] = self.tokens(BATCH, SHORT)
        if "bbox" in self.takes:
            corner, size = self.whole(40, BATCH, TIME, 2), self.whole(40, BATCH, TIME, 2)
            inputs["bbox"] = torch.cat([corner, corner + size], -1)
        return inputs


def find(config: Any, *names: str, depth: int = 0) -> Any:
    """The first of these that a config has, or one inside of it."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None and not callable(value):
            return value
    if depth > 2:
        return None
    inner = dict.fromkeys([*(getattr(config, "sub_configs", None) or {}), *_PARTS])
    for name in inner:
        part = getattr(config, name, None)
        if hasattr(part, "to_dict"):
            value = find(part, *names, depth=depth + 1)
            if value is not None:
                return value
    return None


def pair(size: Any, otherwise: int = 224) -> tuple[int, int]:
    """Height and width of whatever a config calls a size."""
    if isinstance(size, dict):
        return size.get("height", otherwise), size.get("width", otherwise)
    if isinstance(size, (list, tuple)):
        return size[0], size[1] if len(size) > 1 else size[0]
    return (size, size) if isinstance(size, int) else (otherwise, otherwise)


def first(size: Any) -> int:
    number: int = size[0] if isinstance(size, (list, tuple)) else size
    return number


def _special(config: dict[str, Any]) -> set[int]:
    tokens: set[int] = set()
    for name, value in config.items():
        if isinstance(value, dict):
            tokens |= _special(value)
        elif isinstance(value, int) and not isinstance(value, bool) and _SPECIAL.search(name):
            tokens.add(value)
        elif isinstance(value, list) and name.endswith(("token_id", "token_ids")):
            tokens |= {token for token in value if isinstance(token, int)}
    return tokens
