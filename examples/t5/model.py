"""A small T5 of Transformers whose vocabulary dwarfs it: 9 of 10 parameters are words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

WORDS = 8192


def tiny() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    batch = {"input_ids": torch.randint(WORDS, (4, 16)), "labels": torch.randint(WORDS, (4, 12))}
    return T5ForConditionalGeneration(config), batch
