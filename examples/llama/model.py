"""A small Llama 3 of Transformers: fewer layers, all else of the family as it is."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    rope_theta=500000.0,
    use_cache=False,
)


def build() -> LlamaForCausalLM:
    return LlamaForCausalLM(CONFIG)


def tiny() -> tuple[LlamaForCausalLM, dict[str, Any]]:
    torch.manual_seed(0)
    ids = torch.randint(256, (8, 32))
    return build(), {"input_ids": ids, "labels": ids}
