"""A small GPT-2 that is asked, not trained: logits leave the program, and losses are evaluated."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel


class Logits(nn.Module):
    """Of all words, for each next one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids=input_ids).logits


def gpt() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    config.use_cache = False
    return GPT2LMHeadModel(config)


def tiny() -> tuple[nn.Module, tuple[Tensor]]:
    return Logits(gpt()).eval(), (torch.randint(256, (4, 32)),)


def full() -> tuple[nn.Module, tuple[Tensor]]:
    """Llama 3 8B, without memory, and 8 texts of 8192 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        config = LlamaConfig(
            vocab_size=128256,
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=8192,
            use_cache=False,
        )
        ids = torch.zeros(8, 8192, dtype=torch.int64)
        return Logits(LlamaForCausalLM(config).bfloat16()).eval().requires_grad_(False), (ids,)
