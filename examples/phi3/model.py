"""Phi-3 on long texts, whose rotations are stretched frequency by frequency, as LongRoPE finds them.

LongRoPE2 trains with two sets of factors: one for texts within the first length, one for longer ones. So
`tiny` is a long text, and `short` one within it: other rotations, the same parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Phi3Config, Phi3ForCausalLM


def model(first: int, longest: int, **sizes: Any) -> nn.Module:
    pairs = sizes["hidden_size"] // sizes["num_attention_heads"] // 2
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * pairs,
        # Slow rotations are stretched by as much as the text is longer, quick ones are left alone.
        "long_factor": [(longest / first) ** (at / (pairs - 1)) for at in range(pairs)],
        "original_max_position_embeddings": first,
    }
    config = Phi3Config(
        original_max_position_embeddings=first,
        max_position_embeddings=longest,
        rope_parameters=rope,
        use_cache=False,
        pad_token_id=0,
        **sizes,
    )
    return Phi3ForCausalLM(config)


def tiny(tokens: int = 128) -> tuple[nn.Module, dict[str, Tensor]]:
    """Longer than the 32 tokens of the first training."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    made = model(32, 128, vocab_size=256, num_attention_heads=4, num_key_value_heads=4, **sizes)
    ids = torch.randint(256, (1, tokens))
    return made, {"input_ids": ids, "labels": ids}


def short() -> tuple[nn.Module, dict[str, Tensor]]:
    return tiny(32)


def full() -> tuple[nn.Module, dict[str, Tensor]]:
    """Phi-3 mini, without memory, and one text of 131,072 tokens."""
    with torch.device("meta"):
        sizes = {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32}
        made = model(
            4096, 131072, vocab_size=32064, num_attention_heads=32, num_key_value_heads=32, **sizes
        ).bfloat16()
        ids = torch.zeros(1, 131072, dtype=torch.int64)
    return made, {"input_ids": ids, "labels": ids}
