"""The models that have names: what each is made of, without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EVOFORMER = "Evoformer"
"""The kind that is ours; all others are classes of Transformers."""

_MODULES = {
    "LlamaForCausalLM": "llama",
    "GPT2LMHeadModel": "gpt2",
    "MixtralForCausalLM": "mixtral",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "SwinForImageClassification": "swin",
    "T5ForConditionalGeneration": "t5",
}


@dataclass(frozen=True)
class Shipped:
    name: str
    kind: str
    config: Mapping[str, Any]
    parameters: int
    batch: int
    sequence: int | None
    """By default; none for images, whose size the config has."""
    longest: int | None = None
    """How many positions the model has; none where they are relative."""
    dtype: str = "bfloat16"

    @property
    def module(self) -> str:
        """Where Transformers has the class."""
        return _MODULES[self.kind]

    @property
    def text(self) -> str:
        """All that a graph depends on, but for the example's sizes."""
        return json.dumps([self.kind, self.config, self.dtype], sort_keys=True)


# No model drops anything: large ones are trained so, and only then a batch can be cut into micro-batches.


def _llama(name: str, layers: int, width: int, inner: int, heads: int, parameters: int) -> Shipped:
    config = {
        "vocab_size": 128256,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    }
    return Shipped(name, "LlamaForCausalLM", config, parameters, batch=64, sequence=8192, longest=8192)


def _gpt2(layers: int, parameters: int) -> Shipped:
    config = {"n_layer": layers, "n_embd": 1024, "n_head": 16, "tie_word_embeddings": False}
    quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    name = f"gpt2-{layers}l"
    return Shipped(
        name, "GPT2LMHeadModel", {**config, **quiet}, parameters, batch=64, sequence=1024, longest=1024
    )


def _swin(size: str, layers: int, width: int, heads: int, parameters: int) -> Shipped:
    """Two layers in each stage but the third; each stage is twice as wide as the one before."""
    config = {
        "image_size": 1536,
        "window_size": 48,
        "embed_dim": width,
        "depths": [2, 2, layers - 6, 2],
        "num_heads": [heads << stage for stage in range(4)],
        "num_labels": 1000,
        "drop_path_rate": 0.0,
    }
    return Shipped(f"swin-{size}", "SwinForImageClassification", config, parameters, 256, None)


def _t5(size: str, layers: int, width: int, heads: int, words: int, parameters: int) -> Shipped:
    """So many layers in the encoder, and in the decoder."""
    config = {
        "num_layers": layers,
        "d_model": width,
        "d_ff": 4 * width,
        "num_heads": heads,
        "vocab_size": words * 1024,
        "decoder_start_token_id": 0,
        "dropout_rate": 0.0,
    }
    return Shipped(f"t5-{size}", "T5ForConditionalGeneration", config, parameters, 256, 1024)


def _alphafold2(size: str, blocks: int, msa: int, pair: int, heads: int, parameters: int) -> Shipped:
    config = {"blocks": blocks, "msa": msa, "pair": pair, "heads": heads}
    config |= {"sequences": 128, "outer": 32, "far": 32}
    return Shipped(f"alphafold2-{size}", EVOFORMER, config, parameters, 256, 256)


_MIXTRAL = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
_DEEPSEEK = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}

SHIPPED = {
    model.name: model
    for model in (
        _llama("llama-3-8b", 32, 4096, 14336, 32, 8_030_261_248),
        _llama("llama-3-70b", 80, 8192, 28672, 64, 70_553_706_496),
        _llama("llama-3-405b", 126, 16384, 53248, 128, 405_853_388_800),
        _gpt2(24, 406_286_336),
        _gpt2(48, 708_595_712),
        Shipped("mixtral-8x7b", "MixtralForCausalLM", _MIXTRAL, 46_702_792_704, 64, 4096, 32768),
        Shipped("deepseek-v3", "DeepseekV3ForCausalLM", _DEEPSEEK, 671_026_404_352, 64, 4096, 4096),
        _swin("1.8b", 32, 512, 16, 1_809_966_536),
        _swin("5b", 40, 768, 24, 4_968_249_784),
        _swin("10b", 48, 1024, 32, 10_434_039_720),
        _swin("27b", 56, 1536, 32, 27_033_621_928),
        _t5("3.9b", 24, 2048, 32, 512, 3_892_566_016),
        _t5("12b", 32, 3072, 48, 1024, 11_677_443_072),
        _t5("21b", 32, 4096, 64, 1536, 21_475_504_128),
        _t5("47b", 32, 6144, 96, 2048, 46_708_770_816),
        _alphafold2("87m", 48, 256, 128, 8, 87_921_831),
        _alphafold2("930m", 132, 512, 256, 16, 925_460_007),
        _alphafold2("2.4b", 88, 1024, 512, 32, 2_412_644_391),
        _alphafold2("3.2b", 116, 1024, 512, 32, 3_180_267_303),
    )
}
