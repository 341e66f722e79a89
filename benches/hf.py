"""Models of Transformers for the benches: from a config, random weights, their own losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


def llama(
    layers: int, width: int, heads: int, inner: int, words: int, batch: int, length: int
) -> tuple[Any, Batch]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 3,
        max_position_embeddings=length,
        use_cache=False,
    )
    ids = torch.randint(0, words, (batch, length))
    return LlamaForCausalLM(config).train(), {"input_ids": ids, "labels": ids.clone()}


def llama_100m(batch: int, length: int) -> tuple[nn.Module, Batch]:
    return llama(12, 768, 12, 2048, 16384, batch, length)


def t5_100m(batch: int, length: int) -> tuple[nn.Module, Batch]:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=16384,
        d_model=640,
        d_kv=64,
        d_ff=2048,
        num_layers=9,
        num_heads=10,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        use_cache=False,
    )
    ids, labels = (torch.randint(2, 16384, (batch, length)) for _ in range(2))
    return T5ForConditionalGeneration(config).train(), {"input_ids": ids, "labels": labels}
