"""A Llama with adapters of PEFT: the adapters alone are trained."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM


def adapted(rank: int, **sizes: Any) -> nn.Module:
    config = LlamaConfig(use_cache=False, **sizes)
    names = ["q_proj", "v_proj", "up_proj", "down_proj"]
    lora = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules=names)
    return get_peft_model(LlamaForCausalLM(config), lora)


def tiny() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = adapted(4, vocab_size=256, **sizes)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(value, std=0.02)  # PEFT begins with zeros
    ids = torch.randint(256, (4, 16))
    return model, {"input_ids": ids, "labels": ids}


def full() -> tuple[nn.Module, dict[str, Tensor]]:
    """Llama 3 70B with adapters of rank 16, without memory, and 8 texts of 4096 tokens."""
    with torch.device("meta"):
        sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
        heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192}
        model = adapted(16, vocab_size=128256, **sizes, **heads).bfloat16()
        ids = torch.zeros(8, 4096, dtype=torch.int64)
    return model, {"input_ids": ids, "labels": ids}
