"""A small DeepSeek-V3 of Transformers: groups of experts, a shared one, and compressed attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM


def tiny() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        use_cache=False,
    )
    ids = torch.randint(256, (4, 16))
    return DeepseekV3ForCausalLM(config), {"input_ids": ids, "labels": ids}
