"""Llama 3.1 on long texts: its positions are stretched, its tokens are over the devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def model(tokens: int, trained: int, **sizes: Any) -> nn.Module:
    rope = {**STRETCHED, "original_max_position_embeddings": trained}
    config = LlamaConfig(
        max_position_embeddings=tokens,
        num_key_value_heads=8,
        rope_parameters=rope,
        use_cache=False,
        **sizes,
    )
    return LlamaForCausalLM(config)


def tiny() -> tuple[nn.Module, dict[str, Tensor]]:
    """One text of 256 tokens."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 16}
    ids = torch.randint(256, (1, 256))
    return model(256, 32, vocab_size=256, **sizes), {"input_ids": ids, "labels": ids}


def full() -> tuple[nn.Module, dict[str, Tensor]]:
    """Llama 3.1 8B, without memory, and four texts of 131,072 tokens."""
    with torch.device("meta"):
        sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        made = model(131072, 8192, vocab_size=128256, num_attention_heads=32, **sizes).bfloat16()
        ids = torch.zeros(4, 131072, dtype=torch.int64)
    return made, {"input_ids": ids, "labels": ids}
